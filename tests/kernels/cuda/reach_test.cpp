// From what dsrun can be set to, to the kernels that multiply: whatever a choice tells apart is reached by some
// setting, model and card, so that no path is there for benchmarks alone.
#include <doctest/doctest.h>

#include <optional>
#include <set>
#include <string>

#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_blas.h"
#include "kernels/supposed_gpu.h"
#include "runtime/budget/model_needs.h"
#include "runtime/model/model.h"

namespace dspack::test::reach_test {
namespace {

namespace cuda = kernels::cuda;
using kernels::Coding;
using kernels::Precision;

constexpr Precision kPrecisions[] = {Precision::exact, Precision::bf16, Precision::fp8};
constexpr unsigned kMultiprocessors = 132;

/// A card, and the cuBLASLt that is found on its machine; 0: none.
struct Card {
  unsigned major, minor;
  size_t cublaslt;
};
constexpr Card kCards[] = {{8, 0, 0},       {8, 0, 120'805}, {8, 6, 130'100},  {8, 9, 120'904},
                           {9, 0, 120'805}, {9, 0, 130'100}, {10, 0, 130'100}, {12, 0, 130'100}};

/// Matrices of DeepSeek-V3 and of V2-Lite: [out, in].
struct Shape {
  uint32_t out, in;
};
constexpr Shape kShapes[] = {{1536, 7168}, {576, 7168}, {24576, 1536}, {7168, 16384}, {2048, 7168},
                             {7168, 2048}, {256, 7168}, {3072, 2048},  {2048, 1408},  {129280, 7168}};

template <class T>
T* place(uint64_t address) {
  return reinterpret_cast<T*>(address);  // nothing is read: addresses are what they are multiples of
}

cuda::Matrix matrix_of(Coding coding, const Shape& shape) {
  const bool is_scaled = coding == Coding::f8_e4m3;
  cuda::Matrix matrix{{coding, shape.out, shape.in, is_scaled ? 128U : 0U, is_scaled ? 128U : 0U},
                      {place<void>(0x1000), is_scaled ? place<float>(0x2000) : nullptr}};
  return matrix;
}

/// What CudaQueue::linear chooses among.
struct Reached {
  std::set<cuda::BlasPath> paths;
  std::set<unsigned> exact_tokens, exact_warps, tensor_tokens, tensor_warps;
};

void reach(const Card& card, Precision precision, Coding coding, const Shape& shape, uint32_t rows, Reached& reached) {
  const cuda::LinearTask task{.weight = matrix_of(coding, shape),
                              .x = {.data = place<float>(0x3000), .stride = shape.in},
                              .y = {.data = place<float>(0x4000), .stride = shape.out},
                              .rows = rows};
  cuda::BlasPath path = cuda::BlasPath::none;
  if (card.cublaslt != 0) {
    const auto can = cuda::blas_card({.name = {}, .major = card.major, .minor = card.minor}, card.cublaslt);
    path = cuda::choose_linear_blas(task, precision, can, {}).path;
  }
  reached.paths.insert(path);
  if (path != cuda::BlasPath::none) return;
  if (precision != Precision::exact && cuda::fits_tensor_cores(cuda::form_of(task.weight))) {
    const auto choice = cuda::choose_linear_tensor(coding, shape.out, shape.in, rows);
    reached.tensor_tokens.insert(choice.token_tiles);
    reached.tensor_warps.insert(choice.warps_a_row);
  } else {
    const auto choice = cuda::choose_linear(coding, shape.out, shape.in, rows, kMultiprocessors);
    reached.exact_tokens.insert(choice.tokens);
    reached.exact_warps.insert(choice.warps_a_row);
  }
}

/// Of attention and MLPs, on a GPU with room for all that is worth it.
uint32_t most_rows_at_once() {
  const auto gpu = kernels::suppose_gpu(1ULL << 40, {});
  REQUIRE(gpu);
  return runtime::longest_pass(**gpu, runtime::ModelOptions().context).wave;
}

}  // namespace

TEST_CASE("cuda: every way to multiply by a weight is reached from dsrun's settings") {
  // Attention and MLPs are run so many rows at once, whatever the length of a prompt.
  const uint32_t most_rows = most_rows_at_once();
  Reached reached;
  for (const Card& card : kCards) {
    for (const Precision precision : kPrecisions) {
      for (const Coding coding : {Coding::f8_e4m3, Coding::bf16, Coding::f16, Coding::f32}) {
        for (const Shape& shape : kShapes) {
          for (uint32_t rows = 1; rows <= most_rows; ++rows)
            reach(card, precision, coding, shape, rows, reached);
        }
      }
    }
  }
  using cuda::BlasPath;
  CHECK(reached.paths == std::set{BlasPath::none, BlasPath::bf16, BlasPath::bf16_decoded, BlasPath::fp8});
  CHECK(reached.exact_tokens == std::set{1U, 2U, 4U, 8U});
  CHECK(reached.exact_warps == std::set{1U, 2U, 4U, 8U});
  CHECK(reached.tensor_tokens == std::set{1U, 2U, 4U, 8U});
  CHECK(reached.tensor_warps == std::set{1U, 2U, 4U, 8U});
}

TEST_CASE("cuda: weights of FP8 reach cuBLASLt on every card that has it") {
  const uint32_t most_rows = most_rows_at_once();
  for (const Card& card : kCards) {
    if (card.cublaslt == 0) continue;
    for (const Precision precision : {Precision::bf16, Precision::fp8}) {
      CAPTURE(card.major);
      CAPTURE(card.minor);
      Reached reached;
      for (const Shape& shape : kShapes)
        reach(card, precision, Coding::f8_e4m3, shape, most_rows, reached);
      const bool in_blocks = precision == Precision::fp8 && card.major == 9 && card.cublaslt >= 120'900;
      CHECK(reached.paths == std::set{in_blocks ? cuda::BlasPath::fp8 : cuda::BlasPath::bf16_decoded});
    }
  }
}

TEST_CASE("cuda: every way to multiply by experts is reached from dsrun's settings") {
  std::set<unsigned> exact_tokens;
  std::set<cuda::TensorTokens> tensor_tokens;
  std::set<bool> is_fused;
  std::set<bool> is_fused_tensor;
  constexpr uint32_t kExperts = 256;
  constexpr uint32_t kTopK = 8;
  const auto form_of = [](Coding coding, uint32_t out, uint32_t in) {
    return cuda::form_of(matrix_of(coding, {out, in}));
  };
  for (const Coding coding : {Coding::f8_e4m3, Coding::bf16}) {
    const cuda::MatrixForm gate_up = form_of(coding, 2048, 7168);
    const cuda::MatrixForm down = form_of(coding, 7168, 2048);
    for (uint32_t tokens = 1; tokens <= runtime::ModelOptions().max_rows; tokens += tokens < 70 ? 1 : 500) {
      const auto tiles_of = [&](uint32_t tile) {
        return tokens == 1 ? kTopK : cuda::most_expert_tiles(uint64_t{tokens} * kTopK, kExperts, tile);
      };
      const uint32_t tile = cuda::exact_tile(tokens);
      const auto up = cuda::choose_experts(gate_up, 2, tokens, tiles_of(tile));
      const auto low = cuda::choose_experts(down, 1, tokens, tiles_of(tile));
      exact_tokens.insert(up.tokens);
      is_fused.insert(cuda::choose_fused_experts(up.shape, low.shape, tokens, tile).has_value());
      const uint32_t on_cores = cuda::tensor_tile(tokens);
      const auto up_cores = cuda::choose_experts_tensor(gate_up, 2, tokens, tiles_of(on_cores));
      const auto low_cores = cuda::choose_experts_tensor(down, 1, tokens, tiles_of(on_cores));
      tensor_tokens.insert(up_cores.tokens);
      is_fused_tensor.insert(cuda::choose_fused_experts(up_cores.shape, low_cores.shape, tokens, on_cores).has_value());
    }
  }
  CHECK(exact_tokens == std::set{1U, 2U, cuda::kExactTokens});
  CHECK(tensor_tokens == std::set{cuda::TensorTokens::one, cuda::TensorTokens::few, cuda::TensorTokens::many});
  CHECK(is_fused == std::set{false, true});
  CHECK(is_fused_tensor == std::set{false, true});
}

}  // namespace dspack::test::reach_test
