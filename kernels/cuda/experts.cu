// A block takes one tile (up to four assignments of one expert) and some groups of 16 matrix rows, two a warp; the
// tile's input rows lie in shared memory, a part of their columns at a time (dot.cuh).
//
//   grid     x: tiles, as many as the worst routing needs     y: groups of rows, by turns
//
// Tiles of one expert run beside each other, so that its weights come from memory once.
#include "kernels/cuda/experts.h"

#include <limits>

#include "format/base/check.h"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/expert_tiles.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kRowsOfWarp = 2;

/// One step for all experts. Assignment a reads input row a / slots and writes output row a.
struct ProductTask {
  const ExpertEntry* table;
  ExpertTiles tiles;
  Matrix form;  // without addresses
  RowsAt<const float> x;
  uint32_t slots;
  RowsAt<float> y;
  uint32_t staged_groups;
};

struct TileAt {
  uint32_t expert;
  uint32_t count;
  uint32_t assignments[kExactTile];
};

/// Of this block; false: there is none.
template <unsigned kMost>
__device__ __forceinline__ bool find_tile(const ExpertTiles& tiles, TileAt& tile) {
  const uint32_t index = gpu::block_index().x;
  if (tiles.tiles == nullptr) {
    tile.expert = tiles.ids[index];
    tile.count = 1;
    tile.assignments[0] = index;
    return true;
  }
  if (index >= *tiles.tile_count) return false;
  const ExpertTile found = tiles.tiles[index];
  tile.expert = found.expert;
  tile.count = found.count;
#pragma unroll
  for (unsigned i = 0; i < kMost; ++i)
    tile.assignments[i] = i < found.count ? tiles.order[found.first + i] : 0;
  return true;
}

/// act(gate) * up, rounded after each operation.
struct GateUp {
  static constexpr unsigned kMatrices = 2;
  static __device__ __forceinline__ void find(const ExpertEntry& entry, Matrix (&matrices)[2]) {
    matrices[0].data = entry.gate;
    matrices[0].scale = entry.gate_scale;
    matrices[1].data = entry.up;
    matrices[1].scale = entry.up_scale;
  }
  static __device__ __forceinline__ float finish(const float (&sums)[2]) {
    return device::silu_times(sums[0], sums[1]);
  }
};

struct Down {
  static constexpr unsigned kMatrices = 1;
  static __device__ __forceinline__ void find(const ExpertEntry& entry, Matrix (&matrices)[1]) {
    matrices[0].data = entry.down;
    matrices[0].scale = entry.down_scale;
  }
  static __device__ __forceinline__ float finish(const float (&sums)[1]) { return sums[0]; }
};

/// The outputs of two matrix rows.
template <class Product, unsigned kTokens>
__device__ __forceinline__ void store_outputs(const ProductTask& task, const TileAt& tile, uint32_t first_row,
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
        task.y.data[tile.assignments[token] * task.y.stride + first_row + row] = Product::finish(sums);
    }
  }
}

template <class Product, class Stored, bool kAligned, unsigned kTokens>
__device__ void multiply_tile(const ProductTask& task, const TileAt& tile) {
  Matrix matrices[Product::kMatrices];
  for (Matrix& matrix : matrices)
    matrix = task.form;
  Product::find(task.table[tile.expert], matrices);
  constexpr unsigned kRowsOfBlock = kWarpsOfBlock * kRowsOfWarp;
  const uint32_t chunks = (task.form.in - 1) / Stored::kPer16 + 1;
  const uint32_t all_groups = (chunks - 1) / gpu::kWarpThreads + 1;
  const uint32_t that_fit = task.staged_groups / kTokens;
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
          device::stage_input<Stored>(task.x.data + tile.assignments[token] / task.slots * task.x.stride, task.form.in,
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
    store_outputs<Product, kTokens>(task, tile, first_row, totals);
  }
}

template <class Product, class Stored, bool kAligned, unsigned kMost>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads) product_kernel(ProductTask task) {
  TileAt tile;
  if (!find_tile<kMost>(task.tiles, tile)) return;
  if constexpr (kMost > 2) {
    if (tile.count > 2) return multiply_tile<Product, Stored, kAligned, kExactTile>(task, tile);
  }
  if constexpr (kMost > 1) {
    if (tile.count > 1) return multiply_tile<Product, Stored, kAligned, 2>(task, tile);
  }
  multiply_tile<Product, Stored, kAligned, 1>(task, tile);
}

template <class Product, class Stored>
void launch_product(gpu::Stream& stream, const ExpertsChoice& choice, const ProductTask& task) {
  switch (choice.tokens) {
    case 1: return gpu::launch(stream, choice.shape, product_kernel<Product, Stored, true, 1>, task);
    case 2: return gpu::launch(stream, choice.shape, product_kernel<Product, Stored, true, 2>, task);
    default: return gpu::launch(stream, choice.shape, product_kernel<Product, Stored, true, kExactTile>, task);
  }
}

template <class Product, class Stored>
void launch_odd_product(gpu::Stream& stream, const ExpertsChoice& choice, const ProductTask& task, bool is_aligned) {
  if (is_aligned) return gpu::launch(stream, choice.shape, product_kernel<Product, Stored, true, kExactTile>, task);
  gpu::launch(stream, choice.shape, product_kernel<Product, Stored, false, kExactTile>, task);
}

/// `task`: without form and staged_groups.
template <class Product>
void run_product(gpu::Stream& stream, const ExpertsTask& experts, const MatrixForm& form, ProductTask task) {
  const ExpertsChoice choice = choose_experts(form, Product::kMatrices, experts.tokens, experts.top_k, experts.experts);
  task.form = {.out = form.out, .in = form.in, .block_out = form.block_out, .block_in = form.block_in};
  task.staged_groups = choice.staged_groups;
  const bool is_aligned = has_aligned_rows(form);
  // The checks admit these types only.
  if (form.dtype == Dtype::f8_e4m3) {
    if (is_aligned) return launch_product<Product, device::StoredF8>(stream, choice, task);
    return launch_odd_product<Product, device::StoredF8>(stream, choice, task, is_aligned);
  }
  if (form.dtype == Dtype::bf16) {
    if (is_aligned) return launch_product<Product, device::StoredBf16>(stream, choice, task);
    return launch_odd_product<Product, device::StoredBf16>(stream, choice, task, is_aligned);
  }
  if (form.dtype == Dtype::f16) return launch_odd_product<Product, device::StoredF16>(stream, choice, task, is_aligned);
  launch_odd_product<Product, device::StoredF32>(stream, choice, task, is_aligned);
}

}  // namespace

void run_experts(gpu::Stream& stream, const ExpertsTask& task) {
  if (task.tokens == 0) return;
  const uint32_t hidden = task.form.gate_up.in;
  const uint32_t inner = task.form.gate_up.out;
  DSPACK_CHECK(task.form.down.in == inner && task.form.down.out == hidden, "an expert's matrices do not fit");
  DSPACK_CHECK(uint64_t{task.tokens} * task.top_k <= std::numeric_limits<uint32_t>::max(), "too many tokens");
  const ExpertsScratch scratch = lay_out_experts(
      task.scratch,
      {.hidden = hidden, .inner = inner, .experts = task.experts, .top_k = task.top_k, .rows = task.tokens});
  ProductTask product{};
  product.table = task.table;
  product.tiles = make_expert_tiles(stream, task, scratch, exact_tile(task.tokens));
  product.x = task.x;
  product.slots = task.top_k;
  product.y = {.data = scratch.inner, .stride = inner};
  run_product<GateUp>(stream, task, task.form.gate_up, product);
  product.x = {.data = scratch.inner, .stride = inner};
  product.slots = 1;
  product.y = {.data = scratch.parts, .stride = hidden};
  run_product<Down>(stream, task, task.form.down, product);
  run_weighted_sum(stream, {.y = task.y,
                            .parts = {.data = scratch.parts, .stride = hidden},
                            .weights = task.weights,
                            .rows = task.tokens,
                            .cols = hidden,
                            .top_k = task.top_k});
}

}  // namespace dspack::kernels::cuda
