// A block takes one tile (up to four assignments of one expert) and some groups of 16 matrix rows, two a warp; the
// tile's input rows lie in shared memory, a part of their columns at a time (dot.cuh).
//
//   grid     x: tiles, as many as the worst routing needs     y: groups of rows, by turns
//
// Tiles of one expert run beside each other, so that its weights come from memory once.
#include "kernels/cuda/experts.h"

#include <type_traits>

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/expert_product.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kRowsOfWarp = 2;

/// The outputs of two matrix rows.
template <class Product, unsigned kTokens>
__device__ __forceinline__ void store_outputs(const device::ExpertProduct& task, const device::TileAt& tile,
                                              uint32_t first_row, const uint32_t (&assignments)[kTokens],
                                              const float (&totals)[Product::kMatrices][kRowsOfWarp][kTokens]) {
#pragma unroll
  for (unsigned row = 0; row < kRowsOfWarp; ++row) {
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
      float sums[Product::kMatrices];
#pragma unroll
      for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix)
        sums[matrix] = device::sum_of_warp(totals[matrix][row][token]);
      if (gpu::lane_index() == 0 && token < tile.count && first_row + row < task.form.out)
        task.y.data[assignments[token] * task.y.stride + first_row + row] = Product::finish(sums);
    }
  }
}

template <class Product, class Stored, bool kAligned, unsigned kTokens>
__device__ void multiply_tile(const device::ExpertProduct& task, const device::TileAt& tile, uint32_t staged_groups) {
  Matrix matrices[Product::kMatrices];
  for (Matrix& matrix : matrices)
    matrix = task.form;
  Product::find(task.table[tile.expert], matrices);
  uint32_t assignments[kTokens];
#pragma unroll
  for (unsigned token = 0; token < kTokens; ++token)
    assignments[token] = token < tile.count ? device::assignment_of(task.tiles, tile, token) : 0;
  constexpr unsigned kRowsOfBlock = kWarpsOfBlock * kRowsOfWarp;
  const uint32_t chunks = (task.form.in - 1) / Stored::kPer16 + 1;
  const uint32_t all_groups = (chunks - 1) / gpu::kWarpThreads + 1;
  const uint32_t that_fit = staged_groups / kTokens;
  const uint32_t groups = that_fit < all_groups ? that_fit : all_groups;
  const uint32_t stride = groups * Stored::kQuarters * gpu::kWarpThreads;
  auto* inputs = gpu::shared_memory<float4>();
  bool is_staged = false;
  for (uint32_t block_row = gpu::block_index().y * kRowsOfBlock; block_row < task.form.out;
       block_row += gpu::grid_blocks().y * kRowsOfBlock) {
    const uint32_t first_row = block_row + gpu::warp_index() * kRowsOfWarp;
    uint32_t rows[kRowsOfWarp];
#pragma unroll
    for (unsigned row = 0; row < kRowsOfWarp; ++row)
      rows[row] = first_row + row < task.form.out ? first_row + row : task.form.out - 1;  // computed, not stored
    float totals[Product::kMatrices][kRowsOfWarp][kTokens] = {};
    for (uint32_t group = 0; group < all_groups; group += groups) {
      const uint32_t first = group * gpu::kWarpThreads;
      if (!is_staged) {
        gpu::block_barrier();  // every warp is done with what was there before
        for (unsigned token = 0; token < kTokens && token < tile.count; ++token) {
          device::stage_input<Stored>(task.x.data + assignments[token] / task.slots * task.x.stride, task.form.in,
                                      first * Stored::kPer16, groups, inputs + token * stride);
        }
        gpu::block_barrier();  // the input is there
        is_staged = groups == all_groups;
      }
      const uint32_t behind = first + groups * gpu::kWarpThreads;
      const uint32_t end = behind < chunks ? behind : chunks;
#pragma unroll
      for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix) {
        device::add_chunks<Stored, kAligned>(matrices[matrix], rows, first, end, gpu::lane_index(), gpu::kWarpThreads,
                                             inputs, stride, totals[matrix]);
      }
    }
    store_outputs<Product, kTokens>(task, tile, first_row, assignments, totals);
  }
}

template <class Product, class Stored, bool kAligned, unsigned kMost>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads)
    product_kernel(device::ExpertProduct task, uint32_t staged_groups) {
  const device::TileAt tile = device::find_tile(task.tiles);
  if (tile.count == 0) return;
  if constexpr (kMost > 2) {
    if (tile.count > 2) return multiply_tile<Product, Stored, kAligned, kExactTile>(task, tile, staged_groups);
  }
  if constexpr (kMost > 1) {
    if (tile.count > 1) return multiply_tile<Product, Stored, kAligned, 2>(task, tile, staged_groups);
  }
  multiply_tile<Product, Stored, kAligned, 1>(task, tile, staged_groups);
}

template <class Product, class Stored>
void launch_product(gpu::Stream& stream, const ExpertsChoice& choice, const device::ExpertProduct& task,
                    bool is_aligned) {
  const auto launch = [&](auto kernel) { gpu::launch(stream, choice.shape, kernel, task, choice.staged_groups); };
  if (!is_aligned) return launch(product_kernel<Product, Stored, false, kExactTile>);
  if constexpr (Stored::kBytes == 1 || std::is_same_v<Stored, device::StoredBf16>) {
    if (choice.tokens == 1) return launch(product_kernel<Product, Stored, true, 1>);
    if (choice.tokens == 2) return launch(product_kernel<Product, Stored, true, 2>);
  }
  launch(product_kernel<Product, Stored, true, kExactTile>);
}

/// `task`: without form.
template <class Product>
void run_product(gpu::Stream& stream, const ExpertsTask& experts, const MatrixForm& form, device::ExpertProduct task) {
  const ExpertsChoice choice = choose_experts(form, Product::kMatrices, experts.tokens, experts.top_k, experts.experts);
  task.form = device::matrix_of(form);
  const bool is_aligned = has_aligned_rows(form);
  switch (form.dtype) {
    case Dtype::f8_e4m3: return launch_product<Product, device::StoredF8>(stream, choice, task, is_aligned);
    case Dtype::bf16: return launch_product<Product, device::StoredBf16>(stream, choice, task, is_aligned);
    case Dtype::f16: return launch_product<Product, device::StoredF16>(stream, choice, task, is_aligned);
    default:
      return launch_product<Product, device::StoredF32>(stream, choice, task, is_aligned);  // no others are let in
  }
}

}  // namespace

void run_experts(gpu::Stream& stream, const ExpertsTask& task) {
  device::run_expert_steps(stream, task, exact_tile(task.tokens),
                           [&]<class Product>(Product, const MatrixForm& form, const device::ExpertProduct& product) {
                             run_product<Product>(stream, task, form, product);
                           });
}

}  // namespace dspack::kernels::cuda
