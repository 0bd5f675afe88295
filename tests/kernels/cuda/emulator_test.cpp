// What the emulated GPU promises: that it computes as documented, and that it shows mistakes.
#include "tests/support/emulated_gpu/emulator.h"

#include <doctest/doctest.h>
#include <dspack_gpu.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "tests/kernels/cuda/emulator_lab.h"
#include "tests/kernels/lab.h"

namespace dspack::test::emulator_test {
namespace {

/// Each thread hands a number to its neighbour.
__global__ void hand_on(unsigned* out, bool with_barrier) {
  auto* shared = gpu::shared_memory<unsigned>();
  shared[gpu::thread_index()] = gpu::thread_index();
  if (with_barrier) gpu::block_barrier();
  out[gpu::thread_index()] = shared[(gpu::thread_index() + 1) % gpu::block_threads()];
}

__global__ void some_leave() {
  if (gpu::thread_index() % 2 == 0) return;
  gpu::block_barrier();
}
__global__ void two_barriers() {
  if (gpu::thread_index() < 32) {
    gpu::block_barrier();
  } else {
    gpu::block_barrier();
  }
}
__global__ void half_a_shuffle(unsigned* out) {
  if (gpu::lane_index() < 16) *out = gpu::shuffle(1U, 0);
}
__global__ void half_a_maximum(unsigned* out) {
  if (gpu::lane_index() < 16) *out = gpu::largest_of_warp(1U);
}
__global__ void find_extremes(const unsigned* from, unsigned* out) {
  const unsigned mine = from[gpu::thread_index()];
  const unsigned largest = gpu::largest_of_warp(mine);
  const unsigned smallest = gpu::smallest_of_warp(mine);
  out[gpu::thread_index()] = largest - smallest;
}
__global__ void unaligned(const unsigned char* from, unsigned* out) {
  *out = gpu::load_streaming(from + 4).x;
}

__global__ void copy_through(const uint4* from, uint4* to, bool wait) {
  auto* shared = gpu::shared_memory<uint4>();
  gpu::cp_async(shared + gpu::thread_index(), from + gpu::thread_index(), gpu::thread_index() != 3);
  gpu::cp_async_commit_group();
  if (wait) gpu::cp_async_wait_group<0>();
  to[gpu::thread_index()] = shared[gpu::thread_index()];
}

/// d = a b for one warp: a [16, 16] and b [16, 8] in BF16, b given by columns.
__global__ void one_tile(const uint16_t* a, const uint16_t* b, float* d, bool by_tiles) {
  const unsigned g = gpu::lane_index() / 4;
  const unsigned q = gpu::lane_index() % 4;
  const auto pair = [](const uint16_t* from) { return uint32_t{from[0]} | uint32_t{from[1]} << 16U; };
  uint32_t left[4];
  if (by_tiles) {
    const unsigned lane = gpu::lane_index();
    gpu::ldmatrix_x4(left, a + (lane % 16) * 16 + lane / 16 * 8);
  } else {
    for (unsigned i = 0; i < 4; ++i)
      left[i] = pair(a + (g + i % 2 * 8) * 16 + 2 * q + i / 2 * 8);
  }
  const uint32_t right[2] = {pair(b + g * 16 + 2 * q), pair(b + g * 16 + 2 * q + 8)};
  float sums[4] = {};
  gpu::mma_m16n8k16(sums, left, right);
  for (unsigned i = 0; i < 4; ++i)
    d[(g + i / 2 * 8) * 8 + 2 * q + i % 2] = sums[i];
}

__global__ void transpose(const uint16_t* from, uint16_t* to) {
  const unsigned lane = gpu::lane_index();
  uint32_t tiles[4];
  gpu::ldmatrix_x4_trans(tiles, from + lane * 8);
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    to[matrix * 64 + lane / 4 * 8 + 2 * (lane % 4)] = static_cast<uint16_t>(tiles[matrix]);
    to[matrix * 64 + lane / 4 * 8 + 2 * (lane % 4) + 1] = static_cast<uint16_t>(tiles[matrix] >> 16U);
  }
}

}  // namespace

TEST_CASE("emulated GPU: a missing barrier comes out differently from seed to seed") {
  std::set<std::vector<unsigned>> outcomes[2];
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (const bool with_barrier : {false, true}) {
      gpu::configure_emulator({.seed = seed});
      std::vector<unsigned> out(64);
      run({.threads = 64, .shared_bytes = 64 * sizeof(unsigned)}, hand_on, out.data(), with_barrier);
      outcomes[with_barrier ? 1 : 0].insert(out);
    }
  }
  CHECK(outcomes[0].size() > 1);
  REQUIRE(outcomes[1].size() == 1);
  CHECK(outcomes[1].begin()->at(5) == 6);
}

TEST_CASE("emulated GPU: barriers that not all reach, half warps, odd addresses and large launches end the process") {
  std::vector<unsigned> out(64);
  alignas(16) static const unsigned char kBytes[64] = {};
  CHECK(aborts([] { run({.threads = 64}, some_leave); }));
  CHECK(aborts([] { run({.threads = 64}, two_barriers); }));
  CHECK(aborts([&] { run({.threads = 32}, half_a_shuffle, out.data()); }));
  CHECK(aborts([&] { run({.threads = 32}, half_a_maximum, out.data()); }));
  CHECK(aborts([&] { run({.threads = 32}, unaligned, kBytes, out.data()); }));
  CHECK(aborts([] { run({.grid_y = 65'536, .threads = 32}, two_barriers); }));
  CHECK(aborts([] { run({.threads = 31}, two_barriers); }));
  CHECK(aborts([&] { run({.threads = 64}, hand_on, out.data(), true); }));  // no shared memory
  CHECK_FALSE(aborts([&] { run({.threads = 64, .shared_bytes = 256}, hand_on, out.data(), true); }));
}

TEST_CASE("emulated GPU: the largest and the smallest number of a warp, in every lane") {
  std::vector<unsigned> from(64);
  for (unsigned i = 0; i < 64; ++i)
    from[i] = 0xfffffff0U - (i * 7919) % 64 * 3;
  std::vector<unsigned> out(64);
  run({.threads = 64}, find_extremes, from.data(), out.data());
  for (unsigned i = 0; i < 64; ++i) {
    const auto [low, high] = std::minmax_element(from.begin() + i / 32 * 32, from.begin() + i / 32 * 32 + 32);
    CHECK(out[i] == *high - *low);
  }
}

TEST_CASE("emulated GPU: an asynchronous copy is there after its wait, and before it perhaps") {
  std::vector<uint4> from(32);
  for (unsigned i = 0; i < 32; ++i)
    from[i] = {i, i + 1, i + 2, i + 3};
  unsigned missing[2] = {};
  for (const bool wait : {false, true}) {
    gpu::configure_emulator({.seed = 7});
    std::vector<uint4> to(32);
    run({.threads = 32, .shared_bytes = 32 * 16}, copy_through, from.data(), to.data(), wait);
    for (unsigned i = 0; i < 32; ++i)
      missing[wait ? 1 : 0] += to[i].x != (i == 3 ? 0 : i) ? 1 : 0;
  }
  CHECK(missing[0] > 0);
  CHECK(missing[1] == 0);
}

TEST_CASE("emulated GPU: tensor cores cut off what does not fit, towards zero") {
  const double products[8] = {1, 0x1p-25, 0x1p-25, 0x1p-25, 0x1p-25};
  CHECK(gpu::add_products(0, products) == 1);  // each lies below 2^-24 of the largest
  CHECK(gpu::add_products(0x1p-25F, products) == 1);
  CHECK(gpu::add_products(0, {0x1p-25, 0x1p-25, 0x1p-25, 0x1p-25}) == 0x1p-23F);
  CHECK(gpu::add_products(1, {0x1p-24, 0x1p-24, 0x1p-24}) == 1 + 0x1p-23F);  // not the even neighbour
  CHECK(gpu::add_products(-1, {-0x1p-24, -0x1p-24, -0x1p-24}) == -1 - 0x1p-23F);
  CHECK(gpu::add_products(0x1p24F, {-0x1p24, 0x1p0}) == 1);
  CHECK(gpu::add_products(0, {}) == 0);
  CHECK(std::isnan(gpu::add_products(std::numeric_limits<float>::quiet_NaN(), {1})));
  CHECK(std::isinf(gpu::add_products(std::numeric_limits<float>::infinity(), {1})));
}

TEST_CASE("emulated GPU: tiles are multiplied, loaded and transposed as PTX says") {
  Random random;
  CAPTURE(random.seed());
  alignas(16) uint16_t a[256];
  alignas(16) uint16_t b[128];
  for (uint16_t& value : a)
    value = f32_to_bf16(static_cast<float>(random.below(9)) - 4);
  for (uint16_t& value : b)
    value = f32_to_bf16(static_cast<float>(random.below(9)) - 4);
  for (const bool by_tiles : {false, true}) {
    float d[128];
    run({.threads = 32}, one_tile, a, b, d, by_tiles);
    for (unsigned row = 0; row < 16; ++row) {
      for (unsigned column = 0; column < 8; ++column) {
        float wanted = 0;
        for (unsigned k = 0; k < 16; ++k)
          wanted += bf16_to_f32(a[row * 16 + k]) * bf16_to_f32(b[column * 16 + k]);
        CHECK(d[row * 8 + column] == wanted);
      }
    }
  }
  uint16_t transposed[256];
  run({.threads = 32}, transpose, a, transposed);
  for (unsigned i = 0; i < 256; ++i)
    CHECK(transposed[i] == a[i / 64 * 64 + i % 8 * 8 + i / 8 % 8]);
}

TEST_CASE("emulated GPU: a stream does nothing before it must, and what is recorded runs as often as asked") {
  const auto stream = gpu::make_stream(0);
  auto* device = static_cast<unsigned char*>(gpu::allocate(0, 4).value());
  CHECK(device[0] == 0xff);  // poisoned
  unsigned char host = 1;
  stream->copy_to_device(device, &host, 1);
  host = 2;  // borrowed until the next synchronise: what is sent is what is here then
  CHECK(device[0] == 0xff);
  stream->synchronize();
  CHECK(device[0] == 2);
  stream->begin_recording();
  stream->copy_on_device(device + 1, device, 1);
  const auto graph = stream->end_recording();
  stream->synchronize();
  CHECK(device[1] == 0xff);
  for (const unsigned char value : {uint8_t{3}, uint8_t{4}}) {
    stream->copy_to_device(device, &value, 1);
    stream->run(*graph);
    stream->synchronize();
    CHECK(device[1] == value);
  }
  gpu::release(device);
}

}  // namespace dspack::test::emulator_test
