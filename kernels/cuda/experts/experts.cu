// A block takes one tile (up to four assignments of one expert) and some groups of 16 matrix rows, two rows per warp.
// The tile's input rows are in shared memory, a part of their columns at a time, and weights pass through a ring there
// (dot.cuh).
//
//   grid     x: tiles, as many as the worst routing needs     y: groups of rows, in turn
//
// Tiles of one expert run concurrently, so that its weights come from memory once.
#include "kernels/cuda/experts/experts.h"

#include <algorithm>
#include <type_traits>

#include "format/base/size.h"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.cuh"
#include "kernels/cuda/experts/fused_plan.cuh"
#include "kernels/cuda/experts/shared_expert.cuh"
#include "kernels/cuda/linear/linear.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kRowsOfWarp = 2;
constexpr unsigned kRowsOfBlock = kWarpsOfBlock * kRowsOfWarp;
static_assert(kWarpsOfBlock == device::kExactWarps && kRowsOfBlock == device::kExactRowsOfBlock);

/// Pieces that a lane has in flight in kernels for tiles of up to kMax. (Device code cannot call a host function, so
/// it is a variable.)
template <unsigned kMax>
constexpr unsigned kPieces = exact_pieces(kMax);
/// Blocks per multiprocessor that registers are budgeted for.
template <unsigned kMax>
constexpr unsigned kBlocks = kMax == 1   ? 4
                             : kMax == 2 ? 3
                                         : 2;

/// Stores the outputs of two matrix rows.
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
        sums[matrix] = gpu::sum_of_warp(totals[matrix][row][token]);
      if (gpu::lane_index() == 0 && token < tile.count && first_row + row < task.form.out)
        task.y.data[assignments[token] * task.y.stride + first_row + row] = Product::finish(sums, task.limit);
    }
  }
}

/// before_inputs: called before inputs are read, after the first weights have been requested. Must end with a block
/// barrier unless it does nothing.
template <class Product, class Stored, bool kAligned, unsigned kMax, unsigned kTokens, class BeforeInputs>
__device__ void multiply_tile(const device::ExpertProduct& task, const device::TileAt& tile,
                              const device::RowTurns& turns, uint32_t staged_groups,
                              const BeforeInputs& before_inputs) {
  constexpr unsigned kDepth = kPieces<kMax> / (Product::kMatrices * kRowsOfWarp);
  Matrix matrices[Product::kMatrices];
  for (Matrix& matrix : matrices)
    matrix = task.form;
  Product::find(task.table[tile.expert], matrices);
  const unsigned lane = gpu::lane_index();
  const uint32_t chunks = (task.form.in - 1) / Stored::kPer16 + 1;
  const uint32_t all_groups = (chunks - 1) / gpu::kWarpThreads + 1;
  const uint32_t that_fit = staged_groups / kTokens;
  const uint32_t groups = that_fit < all_groups ? that_fit : all_groups;
  const uint32_t stride = groups * Stored::kQuarters * gpu::kWarpThreads;
  auto* inputs = gpu::shared_memory<float4>();
  const device::WarpRows<kRowsOfWarp> all{0, task.form.out, turns.step * kRowsOfBlock};
  uint32_t first_row = turns.first * kRowsOfBlock + gpu::warp_index() * kRowsOfWarp;  // the warp's
  auto stream =
      device::stream_of<kAligned, Stored, kDepth>(inputs + staged_groups * (Stored::kQuarters * gpu::kWarpThreads),
                                                  matrices, all, first_row, chunks, lane, gpu::kWarpThreads);
  const device::ScalePlan<Stored> scales(matrices[0]);
  before_inputs();
  uint32_t assignments[kTokens];
#pragma unroll
  for (unsigned token = 0; token < kTokens; ++token)
    assignments[token] = token < tile.count ? device::assignment_of(task.tiles, tile, token) : 0;
  bool is_staged = false;
  for (uint32_t block_row = turns.first * kRowsOfBlock; block_row < task.form.out;
       block_row += all.step, first_row += all.step) {
    uint32_t rows[kRowsOfWarp];
    all.find(first_row, rows);
    float totals[Product::kMatrices][kRowsOfWarp][kTokens] = {};
    for (uint32_t group = 0; group < all_groups; group += groups) {
      const uint32_t first = group * gpu::kWarpThreads;
      if (!is_staged) {
        device::stage_inputs<Stored, kTokens>(
            task.x, task.form.in, tile.count,
            [&](uint32_t token) { return uint64_t{device::assignment_of(task.tiles, tile, token) / task.slots}; },
            first * Stored::kPer16, groups, inputs);
        is_staged = groups == all_groups;
      }
      const uint32_t behind = first + groups * gpu::kWarpThreads;
      const uint32_t end = behind < chunks ? behind : chunks;
      if (first_row < task.form.out) {
        device::add_share<Stored>(matrices, scales, rows, {first, end, lane, gpu::kWarpThreads, inputs, stride}, stream,
                                  totals);
      }
    }
    store_outputs<Product, kTokens>(task, tile, first_row, assignments, totals);
  }
}

/// Tiles of up to kMax assignments.
template <class Stored, bool kAligned, unsigned kMax>
struct ExactTiles {
  using Weights = Stored;
  static constexpr unsigned kBlocksAtOnce = kBlocks<kMax>;
  static constexpr bool kHasTwo = is_common(Stored::kCoding);  // has kernels for two tokens, as in kernel_tokens()
  static __device__ __forceinline__ uint32_t rows_of_gate_up() { return kRowsOfBlock; }
  static __device__ __forceinline__ uint32_t rows_of_down() { return kRowsOfBlock; }
  static __device__ __forceinline__ void round_inner(const device::FusedTask&, uint32_t, const device::TileAt&,
                                                     const device::RowTurns&) {}

  template <class Product, class BeforeInputs>
  static __device__ __forceinline__ void multiply(const device::ExpertProduct& task, const device::TileAt& tile,
                                                  const device::RowTurns& turns, uint32_t staged_groups,
                                                  const BeforeInputs& before_inputs) {
    const auto run = [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>) {
      multiply_tile<Product, Stored, kAligned, kMax, kTokens>(task, tile, turns, staged_groups, before_inputs);
    };
    if constexpr (!kAligned) return run(std::integral_constant<unsigned, kMax>());
    if constexpr (kMax > 2) {
      if (tile.count > (kHasTwo ? 2 : 1)) return run(std::integral_constant<unsigned, kExactTokens>());
    }
    if constexpr (kMax > 1 && kHasTwo) {
      if (tile.count > 1) return run(std::integral_constant<unsigned, 2>());
    }
    run(std::integral_constant<unsigned, 1>());
  }

  static __device__ __forceinline__ void round_shared_inner(const device::FusedTask&, const device::RowTurns&) {}

  template <class Product, class BeforeInputs>
  static __device__ __forceinline__ void multiply_shared(const device::SharedProduct& task,
                                                         const device::RowTurns& turns,
                                                         const BeforeInputs& before_inputs) {
    device::multiply_shared<Product, Stored, kMax, kPieces<kMax>>(task, turns, before_inputs);
  }
};

template <class Product, class Tiles>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, Tiles::kBlocksAtOnce)
    product_kernel(device::ExpertProduct task, uint32_t staged_groups) {
  const device::TileAt tile = device::find_tile(task.tiles, gpu::block_index().x);
  if (tile.count == 0) return;
  Tiles::template multiply<Product>(task, tile, {gpu::block_index().y, gpu::grid_blocks().y}, staged_groups, [] {});
}

template <class Tiles>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, Tiles::kBlocksAtOnce)
    fused_kernel(device::FusedTask task) {
  device::run_fused_block<Tiles>(task);
}

/// A separate launch per step, for what the single launch does not support: rare codings and layouts, and more tokens.
/// One kernel serves any number of tokens.
template <class Product>
void run_product(gpu::Stream& stream, const ExpertsTask& experts, const MatrixForm& form,
                 const device::ExpertProduct& task) {
  const uint32_t most = most_tokens(experts);
  const ExpertsChoice choice =
      choose_experts(form, Product::kMatrices, kExactTokens, expert_tiles_of(experts, exact_tile(most)));
  device::with_stored(form.coding, [&]<class Stored>(Stored) {
    const auto launch = [&](auto kernel) { gpu::launch(stream, choice.shape, kernel, task, choice.staged_groups); };
    if (has_aligned_rows(form)) return launch(product_kernel<Product, ExactTiles<Stored, true, kExactTokens>>);
    launch(product_kernel<Product, ExactTiles<Stored, false, kExactTokens>>);
  });
}

template <class Stored>
void run_fused(gpu::Stream& stream, uint32_t tokens, const device::FusedTask& task) {
  const auto launch = [&](auto kernel) { device::launch_fused(stream, kernel, task); };
  if (tokens == 1) return launch(fused_kernel<ExactTiles<Stored, true, 1>>);
  if (tokens == 2) return launch(fused_kernel<ExactTiles<Stored, true, 2>>);
  launch(fused_kernel<ExactTiles<Stored, true, kExactTokens>>);
}

constexpr uint64_t kSharedBytes = 32 << 10;  // for inputs; several blocks share a multiprocessor's memory

/// A product with a shared expert's matrices, `matrices` of them at once, computed like linear_exact.
device::SharedChoice choose_shared(const Matrix& matrix, uint32_t matrices, uint32_t tokens) {
  const uint64_t places = exact_tile(tokens);
  const uint32_t warps = choose_linear(matrix.coding, matrix.out, matrix.in, tokens, 1).warps_a_row;
  const uint64_t group_values = uint64_t{gpu::kWarpThreads} * codes_in_16_bytes(matrix.coding);
  const uint64_t group_bytes = group_values * sizeof(float) * places;
  // A whole number of turns of the lanes that share a row.
  const uint64_t that_fit = std::max<uint64_t>(1, kSharedBytes / (group_bytes * warps)) * warps;
  const uint64_t groups = std::min(that_fit, round_up(ceil_div(matrix.in, group_values), warps));
  return {.warps_a_row = warps,
          .staged = launch_count(groups),
          .shared_bytes =
              groups * group_bytes + kRowsOfBlock * matrices * places * sizeof(float) +
              device::stream_bytes(kWarpsOfBlock * gpu::kWarpThreads, exact_pieces(static_cast<unsigned>(places)))};
}

/// Nullopt: the steps must be launched separately; so for rare codings and layouts.
std::optional<device::FusedTask> plan_fused(const ExpertsTask& task) {
  const Coding coding = task.form.gate_up.coding;
  const auto fits = [&](const MatrixForm& form) { return form.coding == coding && has_aligned_rows(form); };
  if (!is_common(coding) || !fits(task.form.gate_up) || !fits(task.form.down)) return std::nullopt;
  const uint32_t most = most_tokens(task);
  const uint32_t tile = exact_tile(most);
  const auto step = [&](const MatrixForm& form, uint32_t matrices) {
    const ExpertsChoice choice = choose_experts(form, matrices, most, expert_tiles_of(task, tile));
    return device::FusedStep{.shape = choice.shape, .staged = choice.staged_groups};
  };
  device::FusedSteps steps{.gate_up = step(task.form.gate_up, device::GateUp::kMatrices),
                           .down = step(task.form.down, device::Down::kMatrices),
                           .tile = tile};
  if (task.shared != nullptr) {
    const SharedExpert& shared = *task.shared;
    if (!fits(form_of(shared.gate)) || !fits(form_of(shared.up)) || !fits(form_of(shared.down))) return std::nullopt;
    steps.gate_up.shared = choose_shared(shared.gate, device::GateUp::kMatrices, task.tokens);
    steps.down.shared = choose_shared(shared.down, device::Down::kMatrices, task.tokens);
    const uint64_t row_groups = ceil_div(shared.gate.out, kRowsOfBlock);
    steps.shared.gate_up_blocks = launch_count(std::min(row_groups, uint64_t{kFusedCounters}));
  }
  return device::plan_fused(task, steps);
}

uint64_t counters_of(const FusedShape& shape, uint32_t tokens) {
  const uint64_t of_shared = uint64_t{shape.shared.gate_up_blocks > 0 ? 1U : 0U} + shape.shared.inner_blocks;
  return 2 + shape.tiles * (uint64_t{1} + shape.inner_blocks) + of_shared + uint64_t{tokens} * shape.down_blocks;
}

}  // namespace

std::optional<FusedShape> choose_fused_experts(const gpu::LaunchShape& gate_up, const gpu::LaunchShape& down,
                                               uint32_t tokens, uint32_t tile, uint32_t inner_blocks,
                                               const FusedSharedShape& shared) {
  if (tokens > tile || tile > kLargestFusedTile) return std::nullopt;
  FusedShape shape{.tiles = gate_up.grid_x,
                   .gate_up_blocks = gate_up.grid_y,
                   .down_blocks = down.grid_y,
                   .inner_blocks = inner_blocks,
                   .shared = shared,
                   .launch = gate_up};
  if (counters_of(shape, tokens) > kFusedCounters) return std::nullopt;
  // Fewer than 2^31: fewer than 2^14 tiles, each of fewer than 2^17 blocks.
  const uint64_t of_shared = shared.gate_up_blocks > 0 ? uint64_t{shared.gate_up_blocks} + shape.down_blocks : 0;
  const uint64_t blocks = uint64_t{shape.tiles} * (uint64_t{shape.gate_up_blocks} + shape.down_blocks) + of_shared;
  constexpr unsigned kWordsBytes = 128;  // experts/experts.cuh: values that a block's threads share
  shape.launch.grid_x = launch_count(blocks);
  shape.launch.grid_y = 1;
  shape.launch.shared_bytes = std::max({gate_up.shared_bytes, down.shared_bytes, kWordsBytes});
  return shape;
}

FusedCounters lay_out_fused_counters(uint32_t* counters, const FusedShape& shape, uint32_t tokens) {
  FusedCounters places{.ticket = counters, .done = counters + 1, .gate_up = counters + 2};
  places.inner = places.gate_up + shape.tiles + (shape.shared.gate_up_blocks > 0 ? 1 : 0);
  places.shared_inner = places.inner + uint64_t{shape.tiles} * shape.inner_blocks;
  places.down = places.shared_inner + shape.shared.inner_blocks;
  places.size = launch_count(counters_of(shape, tokens));
  return places;
}

bool takes_shared_expert(const ExpertsTask& task) {
  return task.shared != nullptr && plan_fused(task).has_value();
}

void run_experts(gpu::Stream& stream, const ExpertsTask& task) {
  if (task.tokens == 0) return;
  const device::ExpertSteps steps =
      device::begin_expert_steps(stream, task, exact_tile(most_tokens(task)), Precision::exact);
  auto fused = plan_fused(task);
  DSPACK_CHECK(fused.has_value() || task.shared == nullptr, "a shared expert that is not computed with these");
  if (fused.has_value()) {
    device::begin_steps(*fused, task, steps);
    return device::with_common(task.form.gate_up.coding,
                               [&]<class Stored>(Stored) { run_fused<Stored>(stream, most_tokens(task), *fused); });
  }
  run_product<device::GateUp>(stream, task, task.form.gate_up, steps.gate_up);
  run_product<device::Down>(stream, task, task.form.down, steps.down);
  if (task.cut.tiles == 0) run_weighted_sum(stream, steps.sum);
}

}  // namespace dspack::kernels::cuda
