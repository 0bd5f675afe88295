// What kernels may use of a GPU, as the test suite plays it on the CPU: the same words as
// kernels/cuda/hardware/dspack_gpu.h, which says what they mean. emulator.h says what is strict here.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <tuple>

#include "format/base/check.h"
#include "format/dtype.h"
#include "kernels/cuda/hardware/runtime.h"
#include "tests/support/emulated_gpu/emulator.h"

// NOLINTBEGIN(bugprone-reserved-identifier, cert-dcl37-c, cert-dcl51-cpp): CUDA's names.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// NOLINTEND(bugprone-reserved-identifier, cert-dcl37-c, cert-dcl51-cpp)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

namespace dspack::gpu {

inline constexpr unsigned kWarpThreads = 32;

inline unsigned thread_index() {
  return thread_place().thread;
}
inline unsigned block_threads() {
  return thread_place().threads;
}
inline unsigned lane_index() {
  return thread_place().thread % kWarpThreads;
}
inline unsigned warp_index() {
  return thread_place().thread / kWarpThreads;
}
inline uint3 block_index() {
  const ThreadPlace& place = thread_place();
  return {place.block[0], place.block[1], place.block[2]};
}
inline dim3 grid_blocks() {
  const ThreadPlace& place = thread_place();
  return {place.grid[0], place.grid[1], place.grid[2]};
}

template <class T>
T* shared_memory() {
  DSPACK_CHECK(thread_place().shared != nullptr, "the launch gave no shared memory");
  return reinterpret_cast<T*>(thread_place().shared);
}

inline void check_aligned(const void* place) {
  DSPACK_CHECK(reinterpret_cast<uintptr_t>(place) % 16 == 0, "16 bytes at an odd place");
}

inline uint4 load_streaming(const void* from) {
  check_aligned(from);
  uint4 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline float4 load_four(const float* from) {
  check_aligned(from);
  float4 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
/// Reads a byte, so that the address sanitizer sees where.
inline void prefetch(const void* from) {
  (void)*static_cast<const volatile unsigned char*>(from);
}
inline void cp_async(void* shared, const void* global, bool valid) {
  check_aligned(shared);
  if (valid) check_aligned(global);
  start_copy(shared, global, valid);
}
inline void cp_async_l2_256b(void* shared, const void* global, bool valid) {
  cp_async(shared, global, valid);
}
inline void cp_async_commit_group() {
  end_copy_group();
}
template <int kPending>
void cp_async_wait_group() {
  wait_for_copies(kPending);
}

using Place = std::source_location;

inline void block_barrier(const Place& at = Place::current()) {
  reach_block_barrier(at);
}
inline void warp_barrier(const Place& at = Place::current()) {
  exchange_in_warp({}, at);
}
inline unsigned shuffle(unsigned value, unsigned lane, const Place& at = Place::current()) {
  return exchange_in_warp({value}, at)[lane % kWarpThreads][0];
}
inline float shuffle(float value, unsigned lane, const Place& at = Place::current()) {
  return std::bit_cast<float>(shuffle(std::bit_cast<uint32_t>(value), lane, at));
}
inline unsigned shuffle_xor(unsigned value, unsigned mask, const Place& at = Place::current()) {
  return shuffle(value, lane_index() ^ mask, at);
}
inline float shuffle_xor(float value, unsigned mask, const Place& at = Place::current()) {
  return shuffle(value, lane_index() ^ mask, at);
}
inline double shuffle_xor(double value, unsigned mask, const Place& at = Place::current()) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto& other = exchange_in_warp({static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32U)},
                                       at)[(lane_index() ^ mask) % kWarpThreads];
  return std::bit_cast<double>(uint64_t{other[1]} << 32U | other[0]);
}
/// One meeting of the lanes instead of five; each adds up in the order of the five.
inline float sum_of_warp(float value, const Place& at = Place::current()) {
  const ExchangeWords* all = exchange_in_warp({std::bit_cast<uint32_t>(value)}, at);
  float sums[kWarpThreads];
  for (unsigned lane = 0; lane < kWarpThreads; ++lane)
    sums[lane] = std::bit_cast<float>(all[lane][0]);
  for (unsigned apart = kWarpThreads / 2; apart > 0; apart /= 2) {
    for (unsigned lane = 0; lane < apart; ++lane)
      sums[lane] += sums[lane + apart];  // as both lanes of a pair have it: a sum of two is the same in either order
  }
  return sums[0];
}
inline unsigned largest_of_warp(unsigned value, const Place& at = Place::current()) {
  const ExchangeWords* all = exchange_in_warp({value}, at);
  for (unsigned lane = 0; lane < kWarpThreads; ++lane)
    value = std::max(value, all[lane][0]);
  return value;
}
inline unsigned smallest_of_warp(unsigned value, const Place& at = Place::current()) {
  return ~largest_of_warp(~value, at);
}
inline unsigned ballot(bool flag, const Place& at = Place::current()) {
  const ExchangeWords* all = exchange_in_warp({flag ? 1U : 0U}, at);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < kWarpThreads; ++lane)
    bits |= all[lane][0] << lane;
  return bits;
}

inline void check_counter(const uint32_t* counter) {
  DSPACK_CHECK(reinterpret_cast<uintptr_t>(counter) % sizeof(*counter) == 0, "a counter at an odd place");
}
inline uint32_t take_ticket(uint32_t* counter) {
  check_counter(counter);
  return add_to_count(counter);
}
inline uint32_t count_up(uint32_t* counter) {
  check_counter(counter);
  return add_to_count(counter);
}
inline void launch_dependents() {}
inline void griddepcontrol_wait(const Place& at = Place::current()) {
  wait_for_previous_at(at);
}
inline void wait_for_count(const uint32_t* counter, uint32_t count, const Place& at = Place::current()) {
  check_counter(counter);
  wait_for_count_at(counter, count, at);
}

// Threads take turns at barriers only, so each of these is one step for them.

inline uint32_t add_together(uint32_t* place, uint32_t value) {
  check_counter(place);
  const uint32_t before = *place;
  *place += value;
  return before;
}
inline void set_together(uint32_t* word, uint32_t bits) {
  check_counter(word);
  *word |= bits;
}
inline void add_together(uint64_t* place, uint64_t value) {
  DSPACK_CHECK(reinterpret_cast<uintptr_t>(place) % sizeof(value) == 0, "8 bytes at an odd place");
  *place += value;
}

inline unsigned lowest_bit(unsigned bits) {
  DSPACK_CHECK(bits != 0, "the lowest bit of none");
  return static_cast<unsigned>(std::countr_zero(bits));
}
inline float fma_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline unsigned popc(unsigned bits) {
  return static_cast<unsigned>(std::popcount(bits));
}
inline float bits_to_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline uint32_t float_to_bits(float value) {
  return std::bit_cast<uint32_t>(value);
}
inline float exponential(float x) {
  return std::exp(x);
}
inline double exponential(double x) {
  return std::exp(x);
}
inline double log1p(double x) {
  return std::log1p(x);
}
inline float square_root(float x) {
  return std::sqrt(x);
}
inline double square_root(double x) {
  return std::sqrt(x);
}
inline float divide(float a, float b) {
  return a / b;
}
inline float2 halves_to_floats(uint32_t halves) {
  return {f16_to_f32(static_cast<uint16_t>(halves)), f16_to_f32(static_cast<uint16_t>(halves >> 16U))};
}
inline uint2 f8_to_halves(uint32_t codes) {
  static const auto halves = [] {
    std::array<uint16_t, 256> all{};
    for (unsigned code = 0; code < all.size(); ++code)
      all[code] = f32_to_f16(f8_e4m3_to_f32(static_cast<uint8_t>(code)));
    return all;
  }();
  const auto half = [&](unsigned i) { return uint32_t{halves[codes >> 8 * i & 0xffU]}; };
  return {half(0) | half(1) << 16U, half(2) | half(3) << 16U};
}
inline uint32_t floats_to_halves(float low, float high) {
  return uint32_t{f32_to_f16(low)} | uint32_t{f32_to_f16(high)} << 16U;
}
inline uint32_t floats_to_bf16s(float low, float high) {
  return uint32_t{f32_to_bf16(low)} | uint32_t{f32_to_bf16(high)} << 16U;
}
inline uint32_t multiply_bf16s(uint32_t a, uint32_t b) {
  const auto product = [](uint32_t x, uint32_t y) {
    return bf16_to_f32(static_cast<uint16_t>(x)) * bf16_to_f32(static_cast<uint16_t>(y));
  };
  return floats_to_bf16s(product(a, b), product(a >> 16U, b >> 16U));
}
inline uint32_t subtract_bf16s(uint32_t a, uint32_t b) {
  const auto difference = [](uint32_t x, uint32_t y) {
    return bf16_to_f32(static_cast<uint16_t>(x)) - bf16_to_f32(static_cast<uint16_t>(y));
  };
  return floats_to_bf16s(difference(a, b), difference(a >> 16U, b >> 16U));
}
inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32U | a;
  uint32_t selected = 0;
  for (unsigned i = 0; i < 4; ++i)
    selected |= static_cast<uint32_t>(bytes >> (8 * ((selector >> 4 * i) & 7U)) & 0xffU) << 8 * i;
  return selected;
}

/// As the least exact of the cards does it (compute capability 8.x): eight products at a time are exact, are cut off
/// below 2^-24 of the largest of them and of the sum so far, and what they add up to is cut off to FP32. Source:
/// "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores", arXiv 2511.10909.
inline float add_products(float sum, const double (&products)[8]) {
  constexpr unsigned kExponentAt = 52;  // of a double, without its sign
  constexpr unsigned kBits = 24;
  double largest = std::abs(static_cast<double>(sum));
  double exact = sum;
  for (const double product : products) {
    largest = std::max(largest, std::abs(product));
    exact += product;
  }
  if (largest == 0 || !std::isfinite(exact)) return static_cast<float>(exact);
  const uint64_t exponent = std::bit_cast<uint64_t>(largest) >> kExponentAt;
  const auto unit = std::bit_cast<double>((exponent - kBits) << kExponentAt);
  const auto units_of_one = std::bit_cast<double>((2 * 1023 + kBits - exponent) << kExponentAt);  // 1 / unit
  auto units = static_cast<int64_t>(sum * units_of_one);
  for (const double product : products)
    units += static_cast<int64_t>(product * units_of_one);
  const double total = static_cast<double>(units) * unit;
  const auto nearest = static_cast<float>(total);
  return std::abs(static_cast<double>(nearest)) > std::abs(total) ? std::nextafter(nearest, 0.0F) : nearest;
}

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         const Place& at = Place::current()) {
  const ExchangeWords* all = exchange_in_warp({a[0], a[1], a[2], a[3], b[0], b[1]}, at);
  const unsigned group = lane_index() / 4;
  const unsigned quad = lane_index() % 4;
  const auto value = [](uint32_t pair, unsigned half) {
    return static_cast<double>(bf16_to_f32(static_cast<uint16_t>(half == 0 ? pair : pair >> 16U)));
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = i / 2;  // g or g + 8
    const unsigned column = 2 * quad + i % 2;
    for (unsigned half = 0; half < 2; ++half) {
      double products[8];
      for (unsigned k = 0; k < 8; ++k) {
        const uint32_t left = all[group * 4 + k / 2][row + 2 * half];
        const uint32_t right = all[column * 4 + k / 2][4 + half];
        products[k] = value(left, k % 2) * value(right, k % 2);
      }
      d[i] = add_products(d[i], products);
    }
  }
}

inline void load_tiles_as(uint32_t (&tile)[4], const void* row, bool transposed, const Place& at) {
  check_aligned(row);
  const auto address = reinterpret_cast<uint64_t>(row);
  const ExchangeWords* all =
      exchange_in_warp({static_cast<uint32_t>(address), static_cast<uint32_t>(address >> 32U)}, at);
  const unsigned group = lane_index() / 4;
  const unsigned quad = lane_index() % 4;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](unsigned r, unsigned c) {
      const uint32_t* words = all[matrix * 8 + r];
      const auto* values = reinterpret_cast<const uint16_t*>(uint64_t{words[1]} << 32U | words[0]);
      return uint32_t{values[c]};
    };
    tile[matrix] = transposed ? element(2 * quad, group) | element(2 * quad + 1, group) << 16U
                              : element(group, 2 * quad) | element(group, 2 * quad + 1) << 16U;
  }
  exchange_in_warp({}, at);  // a row is read here by the lane that needs it: its writer must not go on before
}
inline void ldmatrix_x4(uint32_t (&tile)[4], const void* row, const Place& at = Place::current()) {
  load_tiles_as(tile, row, false, at);
}
inline void ldmatrix_x4_trans(uint32_t (&tile)[4], const void* row, const Place& at = Place::current()) {
  load_tiles_as(tile, row, true, at);
}

template <class... Parameters>
bool has_code(void (* /*kernel*/)(Parameters...)) {
  return emulator_has_code();
}

template <class... Parameters, class... Arguments>
void launch_when(Overlap overlap, Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  if (!may_launch()) return;
  enqueue(stream, EmulatedLaunch{.shape = shape,
                                 .thread = [kernel, all = std::tuple<Parameters...>(static_cast<Parameters>(
                                                        arguments)...)] { std::apply(kernel, all); },
                                 .overlaps = overlap == Overlap::with_previous});
}
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...), const Arguments&... arguments) {
  launch_when(Overlap::none, stream, shape, kernel, arguments...);
}
template <class... Parameters, class... Arguments>
void launch_overlapping(Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
                        const Arguments&... arguments) {
  launch_when(Overlap::with_previous, stream, shape, kernel, arguments...);
}

}  // namespace dspack::gpu
