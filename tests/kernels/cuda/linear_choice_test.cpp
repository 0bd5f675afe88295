#include <doctest/doctest.h>

#include "kernels/cuda/linear/linear.h"

namespace dspack::linear_choice_test {

using namespace dspack;
using kernels::Coding;
using kernels::cuda::choose_linear;
using kernels::cuda::LinearChoice;

namespace {

constexpr unsigned kH100 = 132;
constexpr unsigned kSmall = 20;

struct Shape {
  Coding coding;
  uint32_t out, in;
};
constexpr Shape kShapes[] = {
    {Coding::f8_e4m3, 1536, 7168},  {Coding::f8_e4m3, 24576, 1536},
    {Coding::f8_e4m3, 576, 7168},   {Coding::f8_e4m3, 7168, 16384},
    {Coding::f8_e4m3, 18432, 7168}, {Coding::bf16, 129280, 7168},
    {Coding::bf16, 256, 7168},      {Coding::f32, 1, 1},
    {Coding::f16, 7, 100'003},
};

}  // namespace

TEST_CASE("cuda: what a value of a product depends on follows from the weight alone") {
  for (const Shape& shape : kShapes) {
    const LinearChoice first = choose_linear(shape.coding, shape.out, shape.in, 1, kH100);
    for (const uint32_t rows : {1U, 2U, 3U, 8U, 9U, 4096U}) {
      for (const unsigned multiprocessors : {kSmall, kH100})
        CHECK(choose_linear(shape.coding, shape.out, shape.in, rows, multiprocessors).warps_a_row == first.warps_a_row);
    }
  }
}

TEST_CASE("cuda: a product's launch is within every card's limits and covers rows and tokens") {
  constexpr unsigned kSharedOfAll = 99 << 10;  // compute capability 8.9 and 12.0
  for (const Shape& shape : kShapes) {
    for (const uint32_t rows : {1U, 2U, 5U, 8U, 9U, 4096U, 3'000'000U}) {
      CAPTURE(shape.out);
      CAPTURE(rows);
      const LinearChoice choice = choose_linear(shape.coding, shape.out, shape.in, rows, kH100);
      CHECK(choice.shape.shared_bytes <= kSharedOfAll);
      CHECK(choice.shape.grid_y <= 65'535);
      CHECK(choice.shape.grid_z <= 65'535);
      CHECK(uint64_t{choice.shape.grid_y} * choice.shape.grid_z * choice.tokens >= rows);
      CHECK(choice.tile_groups % choice.warps_a_row == 0);
      CHECK(choice.shape.grid_x >= 1);
    }
  }
}

TEST_CASE("cuda: DeepSeek-V3's products keep an H100 busy") {
  // Blocks that run at once, at least one for each multiprocessor; kv_a_proj has too few rows for that.
  for (const Shape& shape : kShapes) {
    if (shape.out < 1536) continue;
    CHECK(choose_linear(shape.coding, shape.out, shape.in, 1, kH100).shape.grid_x >= kH100);
  }
  CHECK(choose_linear(Coding::f8_e4m3, 576, 7168, 1, kH100).warps_a_row == 4);
  CHECK(choose_linear(Coding::f8_e4m3, 18432, 7168, 1, kH100).warps_a_row == 1);
}

}  // namespace dspack::linear_choice_test
