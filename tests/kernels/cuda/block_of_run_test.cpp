#include "kernels/cuda/device/dot.cuh"

#include <algorithm>

#include "tests/kernels/lab.h"

namespace dspack::test::block_of_run_test {

namespace {

namespace cuda = kernels::cuda;

struct E4m3 {
  static constexpr unsigned kPer16 = 16;
  static constexpr unsigned kPerScale = kPer16;
};

}  // namespace

TEST_CASE("cuda: the block of a chunk is that of a division, up to the largest matrices") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kPer16 = E4m3::kPer16;
  const float scale = 1;
  for (int i = 0; i < 2000; ++i) {
    const uint32_t block = (1U + random.below(1U << random.below(20))) * kPer16;
    // Random, or as many chunks as there may be with such blocks.
    const uint64_t most = std::min((uint64_t{1} << 32U) / (block / kPer16) - 1, uint64_t{0xffffffffU} / kPer16);
    const uint64_t chunks = i % 2 == 0 ? most : 1 + random.below(static_cast<uint32_t>(most));
    const cuda::Matrix matrix{{kernels::Coding::f8_e4m3, 1, static_cast<uint32_t>(chunks * kPer16), 1, block},
                              {nullptr, &scale}};
    CAPTURE(matrix.in);
    CAPTURE(block);
    REQUIRE(cuda::has_aligned_rows(cuda::form_of(matrix)));
    const cuda::device::BlockOfRun<E4m3> block_of(matrix);
    const uint32_t per_block = block / kPer16;
    for (const uint64_t chunk : {uint64_t{0}, chunks - 1, (chunks - 1) / per_block * per_block,
                                 std::max<uint64_t>(chunks / per_block * per_block, 1) - 1,
                                 uint64_t{random.below(static_cast<uint32_t>(chunks))}})
      CHECK(block_of(static_cast<uint32_t>(chunk)) == chunk / per_block);
  }
}

TEST_CASE("cuda: rows with more chunks than the blocks' division is exact for are not read by chunks") {
  const float scale = 1;
  cuda::Matrix matrix{{kernels::Coding::f8_e4m3, 1, 1U << 21U, 1, 1U << 20U}, {nullptr, &scale}};
  CHECK_FALSE(cuda::has_aligned_rows(cuda::form_of(matrix)));
  matrix.block_in = 128;
  CHECK(cuda::has_aligned_rows(cuda::form_of(matrix)));
}

}  // namespace dspack::test::block_of_run_test
