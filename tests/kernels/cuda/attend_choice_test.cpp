#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/attention/latent_rows.h"

namespace dspack::kernels::cuda::attend_choice_test {
namespace {

constexpr AttendShape kV3{
    .rows = 1, .heads = 128, .latent_dim = 512, .rope_dim = 64, .position_limit = 131'072, .has_bf16_keys = true};
constexpr AttendShape kV2Lite{
    .rows = 1, .heads = 16, .latent_dim = 512, .rope_dim = 64, .position_limit = 32'768, .has_bf16_keys = true};
constexpr Precision kPrecisions[] = {Precision::exact, Precision::split, Precision::bf16, Precision::fp8};
constexpr AttendChoice kAllChoices[] = {AttendChoice::exact,       AttendChoice::tensor_64x2, AttendChoice::tensor_64x1,
                                        AttendChoice::tensor_16x2, AttendChoice::tensor_16x1, AttendChoice::split_32x2,
                                        AttendChoice::split_16x2};

gpu::Properties card(unsigned major, unsigned minor, uint64_t shared_kib) {
  gpu::Properties properties;
  properties.major = major;
  properties.minor = minor;
  properties.shared_bytes_per_block = shared_kib << 10;
  return properties;
}
const gpu::Properties kA100 = card(8, 0, 163);
const gpu::Properties kAda = card(8, 9, 99);
const gpu::Properties kH100 = card(9, 0, 227);

AttendShape with(AttendShape shape, uint32_t rows, uint32_t latent, uint32_t rope) {
  shape.rows = rows;
  shape.latent_dim = latent;
  shape.rope_dim = rope;
  return shape;
}

std::vector<AttendShape> many_shapes() {
  std::vector<AttendShape> shapes;
  for (const uint32_t rows : {1U, 2U, 8U, 63U, 64U, 4096U}) {
    for (const uint32_t heads : {1U, 3U, 16U, 20U, 64U, 128U, 300U}) {
      for (const uint32_t latent : {7U, 80U, 512U, 2000U}) {
        for (const uint32_t limit : {rows, 4096U, 163'840U})
          shapes.push_back({.rows = rows,
                            .heads = heads,
                            .latent_dim = latent,
                            .rope_dim = 64,
                            .position_limit = limit,
                            .has_bf16_keys = true});
      }
    }
  }
  return shapes;
}

}  // namespace

TEST_CASE("cuda: attention takes the widest tile that the card's shared memory holds") {
  CHECK(attend_choice(kV3, Precision::bf16, kH100) == AttendChoice::tensor_64x2);
  CHECK(attend_choice(kV3, Precision::fp8, kA100) == AttendChoice::tensor_64x1);
  CHECK(attend_choice(kV3, Precision::bf16, kAda) == AttendChoice::tensor_16x1);
  CHECK(attend_choice(kV2Lite, Precision::bf16, kH100) == AttendChoice::tensor_16x2);
  CHECK(attend_choice(kV2Lite, Precision::bf16, kA100) == AttendChoice::tensor_16x1);
  CHECK(attend_choice(with(kV2Lite, 2, 512, 64), Precision::bf16, kH100) == AttendChoice::tensor_64x2);
  for (const Precision precision : kPrecisions) {
    for (const gpu::Properties& properties : {kA100, kAda, kH100}) {
      for (const AttendShape& shape : many_shapes()) {
        const AttendChoice choice = attend_choice(shape, precision, properties);
        if (choice == AttendChoice::exact) continue;
        CHECK((tensor_tile(choice).terms > 1) == (precision == Precision::split));
        CHECK(attend_launch(shape, choice).shared_bytes <= properties.shared_bytes_per_block);
      }
    }
  }
}

TEST_CASE("cuda: every kernel of attention is what some precision takes of V3 or V2-Lite on some card") {
  std::set<AttendChoice> taken;
  for (const Precision precision : kPrecisions) {
    for (const gpu::Properties& properties : {kA100, kAda, kH100}) {
      for (const AttendShape& shape : {kV3, kV2Lite})
        taken.insert(attend_choice(shape, precision, properties));
    }
  }
  CHECK(taken == std::set(std::begin(kAllChoices), std::end(kAllChoices)));
}

TEST_CASE("cuda: split attention is for keys that are BF16, and for nothing else") {
  CHECK(attend_choice(kV3, Precision::split, kH100) == AttendChoice::split_32x2);
  CHECK(attend_choice(kV3, Precision::split, kA100) == AttendChoice::split_16x2);
  CHECK(attend_choice(kV3, Precision::split, kAda) == AttendChoice::exact);
  CHECK(attend_choice(kV2Lite, Precision::split, kH100) == AttendChoice::split_16x2);
  AttendShape other = kV3;
  other.has_bf16_keys = false;
  CHECK(attend_choice(other, Precision::split, kH100) == AttendChoice::exact);
  CHECK(attend_choice(other, Precision::bf16, kH100) == AttendChoice::tensor_64x2);
  const auto keys_of = [](Dtype dtype, uint64_t address) {
    return shape_of({{.cache = reinterpret_cast<const void*>(address), .cache_dtype = dtype}}).has_bf16_keys;
  };
  CHECK(keys_of(Dtype::bf16, 0x1000));
  CHECK_FALSE(keys_of(Dtype::bf16, 0x1008));
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::f8_e4m3})
    CHECK_FALSE(keys_of(dtype, 0x1000));
}

TEST_CASE("cuda: attention is exact where that is asked for, or where tensor cores do not fit the shape") {
  for (const AttendShape& shape : many_shapes())
    CHECK(attend_choice(shape, Precision::exact, kH100) == AttendChoice::exact);
  for (const Precision precision : {Precision::split, Precision::bf16, Precision::fp8}) {
    const auto is_exact = [&](uint32_t latent, uint32_t rope) {
      return attend_choice(with(kV3, 1, latent, rope), precision, kH100) == AttendChoice::exact;
    };
    CHECK_FALSE(is_exact(80, 16));
    CHECK_FALSE(is_exact(80, 0));
    CHECK(is_exact(88, 16));
    CHECK(is_exact(80, 8));
    CHECK(is_exact(528, 16));
    CHECK(is_exact(512, 80));
    CHECK(attend_choice(kV3, precision, card(7, 5, 64)) == AttendChoice::exact);
  }
}

TEST_CASE("cuda: attention's launches are within every card's limits and its scratch within bounds") {
  constexpr uint64_t kScratch = 128ULL << 20;
  for (const AttendShape& shape : many_shapes()) {
    for (const AttendChoice choice : kAllChoices) {
      CAPTURE(shape.rows);
      CAPTURE(shape.heads);
      CAPTURE(shape.latent_dim);
      CAPTURE(static_cast<int>(choice));
      const AttendSplits splits = attend_splits(shape, choice);
      const gpu::LaunchShape launch = attend_launch(shape, choice);
      const unsigned queries = choice == AttendChoice::exact ? kExactTile.queries : tensor_tile(choice).queries;
      CHECK(uint64_t{launch.grid_x} * queries >= uint64_t{splits.rows_a_run} * shape.heads);
      const bool can_halve = queries == 64 && launch.grid_x * splits.slots < kTensorBlocks;
      CHECK(launch.grid_y == splits.slots * (can_halve ? 2 : 1));
      CHECK(launch.grid_y <= 65'535);
      CHECK(launch.grid_z <= 65'535);
      CHECK(launch.threads <= 1024);
      CHECK(splits.rows_a_run >= 1);
      CHECK(splits.slots <= splits.most);
      const uint64_t row_bytes = uint64_t{shape.heads} * splits.slots * (shape.latent_dim + 1 + 4) * 4;
      CHECK(splits.scratch_bytes <= std::max(kScratch, row_bytes));
      CHECK(splits.scratch_bytes >=
            uint64_t{splits.rows_a_run} * shape.heads * splits.slots * (shape.latent_dim + 2) * 4);
      CHECK(attend_scratch_bytes(shape) >= splits.scratch_bytes);
    }
    CHECK(attend_launch(shape, AttendChoice::exact).shared_bytes <= 99 << 10);
  }
}

TEST_CASE("cuda: the scratch of the largest call serves every smaller one") {
  for (const uint32_t heads : {1U, 16U, 128U, 300U}) {
    const AttendShape largest{
        .rows = 512, .heads = heads, .latent_dim = 512, .rope_dim = 64, .position_limit = 163'840};
    const uint64_t there = attend_scratch_bytes(largest);
    for (uint32_t rows = 1; rows <= largest.rows; rows += 1 + rows / 7) {
      for (uint32_t limit = rows; limit <= largest.position_limit; limit += 1 + limit / 5) {
        AttendShape smaller = largest;
        smaller.rows = rows;
        smaller.position_limit = limit;
        CHECK(attend_scratch_bytes(smaller) <= there);
      }
    }
  }
}

TEST_CASE("cuda: what a row of exact or split attention depends on follows from the number of heads") {
  for (const uint32_t heads : {1U, 16U, 128U}) {
    const AttendShape one{.rows = 1, .heads = heads, .latent_dim = 512, .rope_dim = 64, .position_limit = 1};
    for (const AttendShape& shape : many_shapes()) {
      AttendShape other = shape;
      other.heads = heads;
      CHECK(attend_splits(other, AttendChoice::exact).most == attend_splits(one, AttendChoice::exact).most);
      for (const AttendChoice choice : {AttendChoice::split_32x2, AttendChoice::split_16x2})
        CHECK(attend_splits(other, choice).most == attend_splits(one, AttendChoice::split_32x2).most);
    }
  }
}

TEST_CASE("cuda: FP8 rows of a tile fit the stage in which they wait to be decoded") {
  for (uint32_t latent = 16; latent <= kTensorColumns; latent += 16) {
    for (uint32_t rope = 0; latent + rope <= kTensorKeyDim; rope += 16) {
      if (fp8_row({latent, rope}).bytes > kTensorRowBytes) FAIL_CHECK(latent, " + ", rope);
    }
  }
}

TEST_CASE("cuda: every tile of a latent that is stored has a warp, and what is behind them, too") {
  for (const uint32_t latent : {1U, 128U, 129U, 512U, 1024U, 1025U, 5000U}) {
    for (const uint32_t rows : {1U, 3U, 70'000U}) {
      const gpu::LaunchShape launch = choose_store_latents_launch(rows, latent);
      CHECK(launch.grid_x * launch.threads / 32 >= latent_tiles(latent) + 1);
      CHECK(launch.grid_x * launch.threads / 32 < latent_tiles(latent) + 1 + launch.threads / 32);
      CHECK(launch.threads <= 256);
      CHECK(launch.grid_y == std::min(rows, 65'535U));
    }
  }
}

TEST_CASE("cuda: DeepSeek-V3's attention keeps an H100 busy") {
  // Two blocks of the exact kernel share each of the 132 multiprocessors (83 KB of 228 KB, 128 registers), and one of
  // the tensor kernel has it alone.
  const gpu::LaunchShape exact = attend_launch(kV3, AttendChoice::exact);
  CHECK(exact.grid_x * exact.grid_y == 256);
  CHECK(2 * (exact.shared_bytes + 1024) <= 228 << 10);
  const gpu::LaunchShape tensor = attend_launch(kV3, AttendChoice::tensor_64x2);
  CHECK(tensor.grid_x * tensor.grid_y == 128);
  CHECK(attend_launch(kV2Lite, AttendChoice::tensor_16x2).grid_y == 128);
  const gpu::LaunchShape split = attend_launch(kV3, AttendChoice::split_32x2);
  CHECK(split.grid_x * split.grid_y == 128);
  CHECK(attend_launch(kV2Lite, AttendChoice::split_16x2).grid_y == 128);
}

}  // namespace dspack::kernels::cuda::attend_choice_test
