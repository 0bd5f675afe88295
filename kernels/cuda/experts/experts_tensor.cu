// A block takes one tile (up to 8 or 64 assignments of one expert). Each of its warps takes 32 matrix rows, or 16 for a
// single token: half of gate and half of up, or all of down. The tile's rounded inputs are in shared memory, a part of
// their columns at a time. Weights for few assignments pass through a ring there (linear/tile_stream.cuh); for many
// they are loaded from global memory straight into the registers of the lanes that multiply them
// (linear/tensor_rows.cuh).
#include "kernels/cuda/experts/experts.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.cuh"
#include "kernels/cuda/experts/fused_plan.cuh"
#include "kernels/cuda/experts/shared_tensor.cuh"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tensor_rows.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kFewWarps = expert_tensor_warps(TensorTokens::few);  // in a block that runs all steps
constexpr unsigned kManyTiles = 8;                                      // tiles of 8 assignments

/// Steps in a warp's ring.
template <TensorTokens kTokens>
constexpr unsigned kDepth = device::kFewTilesInRing / expert_row_tiles(kTokens);

using device::kTileRows;
using device::kTileTokens;

/// One tile of up to kTokenTiles * 8 assignments, in a launch for kTokens.
template <class Product, class Stored, unsigned kTokenTiles, bool kFp8, TensorTokens kTokens>
struct TensorTile {
  static constexpr bool kHasRings = kTokens != TensorTokens::many;
  static constexpr unsigned kRowTiles = expert_row_tiles(kTokens);
  static constexpr unsigned kOutputs = kTileRows * kRowTiles / Product::kMatrices;  // outputs per warp

  using Rows = device::TensorRows<Stored, kTokenTiles, kRowTiles, Product::kMatrices, kFp8>;
  using Sums = typename Rows::Sums;

  const device::ExpertProduct& task;
  const device::TileAt& tile;
  Matrix matrices[Product::kMatrices];
  device::StagedInputs inputs;

  /// Stages the inputs' columns from `first` on.
  __device__ void stage(uint32_t first) const {
    inputs.template stage<kFp8, (kTokenTiles > 1)>(task.rounded, first, tile.count, [&](uint32_t token) {
      return device::assignment_of(task.tiles, tile, token) / task.slots;
    });
  }

  __device__ __forceinline__ Rows find_rows(uint32_t first_row) const {
    Rows rows;
    rows.find(matrices, first_row);
    return rows;
  }

  __device__ void store(uint32_t first_row, const Sums& totals) const {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
#pragma unroll
    for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const uint32_t token = tokens * kTileTokens + 2 * quad + i;
        if (token >= tile.count) continue;
        float* y = task.y.data + device::assignment_of(task.tiles, tile, token) * task.y.stride;
#pragma unroll
        for (unsigned eight = 0; eight < kOutputs / 8; ++eight) {
          const uint32_t row = first_row + eight * 8 + group;
          float sums[Product::kMatrices];
#pragma unroll
          for (unsigned matrix = 0; matrix < Product::kMatrices; ++matrix) {
            const unsigned from = eight * Product::kMatrices + matrix;  // as RowsOfTiles numbers them
            sums[matrix] = totals[from / 2][tokens][from % 2 * 2 + i];
          }
          if (row < task.form.out) y[row] = Product::finish(sums, task.limit);
        }
      }
    }
  }

  /// before_inputs: called before inputs are read, after the first weights have been requested.
  template <class BeforeInputs>
  __device__ __forceinline__ void run(const device::RowTurns& turns, const BeforeInputs& before_inputs) const {
    const uint32_t rows_of_block = gpu::block_threads() / gpu::kWarpThreads * kOutputs;
    if constexpr (!kHasRings) before_inputs();
    for (uint32_t block_row = turns.first * rows_of_block; block_row < task.form.out;
         block_row += turns.step * rows_of_block) {
      const uint32_t first_row = block_row + gpu::warp_index() * kOutputs;
      Sums totals[1] = {};
      const auto multiply = [&](const auto& add_columns) {
        for (uint32_t first = 0; first < task.form.in; first += inputs.columns) {
          gpu::block_barrier();  // every warp has finished the previous columns
          stage(first);
          gpu::block_barrier();  // the inputs are staged
          const uint32_t behind = first + inputs.columns;
          add_columns({.staged_first = first,
                       .begin = first,
                       .end = behind < task.form.in ? behind : task.form.in,
                       .turn = device::kStepColumns<Stored>});
        }
      };
      if constexpr (kHasRings) {
        gpu::warp_barrier();  // the ring is free
        device::TileStream<Stored, Product::kMatrices, kRowTiles, kDepth<kTokens>> stream(
            device::few_ring_of_warp(), matrices,
            {.first = first_row,
             .rows_of_turn = 0,
             .sets = 1,
             .first_column = 0,
             .columns_of_turn = device::kStepColumns<Stored>});
        const Rows rows = find_rows(first_row);
        const device::BlockOfRun<Stored> block_of(matrices[0]);
        auto ahead = rows.first_scales(matrices, block_of, 0, device::kStepColumns<Stored>);
        if (block_row == turns.first * rows_of_block) before_inputs();
        multiply([&](const device::ColumnRange& range) {
          rows.template add_steps<1>(matrices, block_of, range, inputs, stream, ahead, totals);
        });
      } else {
        const Rows rows = find_rows(first_row);
        multiply([&](const device::ColumnRange& range) {
          constexpr unsigned kAhead = kTokenTiles == 1 ? 4 : kTokenTiles < 8 ? 2 : 1;
          rows.template add_columns<kAhead>(matrices, range, inputs, totals[0]);
        });
      }
      store(first_row, totals[0]);
    }
  }
};

template <class Stored, TensorTokens kTokens, bool kFp8>
struct TensorTiles {
  using Weights = Stored;
  static __device__ __forceinline__ uint32_t rows_of_down() {
    return gpu::block_threads() / gpu::kWarpThreads * TensorTile<device::Down, Stored, 1, kFp8, kTokens>::kOutputs;
  }

  static constexpr __device__ uint32_t rows_of_gate_up() {
    return kFewWarps * TensorTile<device::GateUp, Stored, 1, kFp8, kTokens>::kOutputs;
  }

  /// Rounds written values. Up to 128 / rows_of_gate_up() blocks write 128 values that share a scale; each calls this
  /// once for them after its own part, and the last one rounds them, for `count` rows. `counters`: one per 128 values.
  /// meanwhile: called first by all warps except the one that counts.
  template <class RowAt, class Meanwhile>
  static __device__ __forceinline__ void round_written(RowsAt<const float> x, uint32_t in, const RoundedRows& rounded,
                                                       uint32_t* counters, uint32_t count, const RowAt& row_at,
                                                       const device::RowTurns& turns, const Meanwhile& meanwhile) {
    if (gpu::warp_index() != 0) meanwhile();
    constexpr uint32_t kRows = rows_of_gate_up();
    static_assert(device::kRoundedBlock % kRows == 0);
    const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
    auto* is_complete = gpu::shared_memory<uint32_t>() + device::kIsCompleteWord;
    for (uint32_t row = turns.first * kRows; row < in; row += turns.step * kRows) {
      const uint32_t block = row / device::kRoundedBlock;
      const uint32_t left = in - block * device::kRoundedBlock;
      const uint32_t parts = ((left < device::kRoundedBlock ? left : device::kRoundedBlock) - 1) / kRows + 1;
      if (gpu::thread_index() == 0) *is_complete = gpu::count_up(counters + block) == parts - 1 ? 1 : 0;
      gpu::block_barrier();  // is_complete is stored, and other blocks' parts are visible
      for (uint32_t i = gpu::warp_index(); *is_complete != 0 && i < count; i += warps) {
        const uint32_t to = row_at(i);
        device::round_row_block<kFp8>(x.data + to * x.stride, in, block, rounded, to);
      }
      gpu::block_barrier();  // all values are rounded, and is_complete has been read
    }
  }
  static __device__ void round_inner(const device::FusedTask& task, uint32_t index, const device::TileAt& tile,
                                     const device::RowTurns& turns) {
    const device::ExpertProduct& down = task.steps.down;
    round_written(
        down.x, down.form.in, down.rounded, task.counters.inner + index * task.shape.inner_blocks, tile.count,
        [&](uint32_t i) { return device::assignment_of(down.tiles, tile, i); }, turns,
        [&] {
          constexpr uint32_t kTilesAtOnce = 8;  // with more, other tiles' weights would evict it first
          if (task.shape.tiles <= kTilesAtOnce) prefetch_down(task, tile, turns);
        });
  }
  /// Between the last values of gate and up and the first products with down memory would idle for some 2 us, while
  /// inner values are counted, rounded and counted again. So the blocks of gate and up each prefetch a share of the
  /// weights that follow the first steps of down's rings.
  static __device__ __forceinline__ void prefetch_down(const device::FusedTask& task, const device::TileAt& tile,
                                                       const device::RowTurns& turns) {
    constexpr uint32_t kFirst = (kDepth<kTokens> - 1) * device::kStepBytes;
    constexpr uint32_t kBytes = 256;  // per row: 15 MB for V3
    const device::ExpertProduct& down = task.steps.down;
    const uint32_t row_bytes = down.form.in / Stored::kPer16 * 16;
    const uint32_t rows = (down.form.out - 1) / turns.step + 1;
    const auto* codes = static_cast<const unsigned char*>(down.table[tile.expert].down[kCodes]);
    const uint32_t behind = (turns.first + 1) * rows < down.form.out ? (turns.first + 1) * rows : down.form.out;
    for (uint32_t row = turns.first * rows + gpu::thread_index() - gpu::kWarpThreads; row < behind;
         row += gpu::block_threads() - gpu::kWarpThreads) {
      for (uint32_t at = kFirst; at < kFirst + kBytes && at < row_bytes; at += device::kStepBytes)
        gpu::prefetch(codes + uint64_t{row} * row_bytes + at);
    }
  }
  static __device__ void round_shared_inner(const device::FusedTask& task, const device::RowTurns& turns) {
    const device::SharedProduct& down = task.shared_down;
    round_written(
        down.x, down.matrices[0].in, down.rounded, task.counters.shared_inner, down.tokens,
        [](uint32_t i) { return i; }, turns, [] {});
  }
  template <class Product, class BeforeInputs>
  static __device__ __forceinline__ void multiply_shared(const device::SharedProduct& task,
                                                         const device::RowTurns& turns,
                                                         const BeforeInputs& before_inputs) {
    const uint32_t rows = Product::kMatrices == 1 ? rows_of_down() : rows_of_gate_up();
    device::multiply_shared_tensor<Product, Stored, kFp8>(task, turns, rows, before_inputs);
  }

  template <class Product, unsigned kTokenTiles, class BeforeInputs>
  static __device__ __forceinline__ void run(const device::ExpertProduct& task, const device::TileAt& tile,
                                             const device::RowTurns& turns, uint32_t staged_columns,
                                             const BeforeInputs& before_inputs) {
    using Tile = TensorTile<Product, Stored, kTokenTiles, kFp8, kTokens>;
    Tile work{task,
              tile,
              {},
              {gpu::shared_memory<unsigned char>() + (Tile::kHasRings ? device::kFewInputsAt : 0), staged_columns,
               device::staged_rows<kTokenTiles>(tile.count)}};
    for (Matrix& matrix : work.matrices)
      matrix = task.form;
    Product::find(task.table[tile.expert], work.matrices);
    work.run(turns, before_inputs);
  }

  template <class Product, class BeforeInputs>
  static __device__ __forceinline__ void multiply(const device::ExpertProduct& task, const device::TileAt& tile,
                                                  const device::RowTurns& turns, uint32_t staged_columns,
                                                  const BeforeInputs& before_inputs) {
    if constexpr (kTokens == TensorTokens::many) {
      if (tile.count > 4 * kTileTokens)
        return run<Product, kManyTiles>(task, tile, turns, staged_columns, before_inputs);
      if (tile.count > 2 * kTileTokens) return run<Product, 4>(task, tile, turns, staged_columns, before_inputs);
      if (tile.count > kTileTokens) return run<Product, 2>(task, tile, turns, staged_columns, before_inputs);
    }
    run<Product, 1>(task, tile, turns, staged_columns, before_inputs);
  }
};

/// Rounds the inputs of the tiles' assignments: block x takes a tile, block y 128 values of each of its rows.
template <bool kFp8>
__global__ void round_tiles_kernel(device::ExpertProduct task) {
  const device::TileAt tile = device::find_tile(task.tiles, gpu::block_index().x);
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint32_t block = gpu::block_index().y; block < task.rounded.columns / kRoundedBlock;
       block += gpu::grid_blocks().y) {
    for (uint32_t i = gpu::warp_index(); i < tile.count; i += warps) {
      const uint32_t row = device::assignment_of(task.tiles, tile, i) / task.slots;
      device::round_row_block<kFp8>(task.x.data + row * task.x.stride, task.form.in, block, task.rounded, row);
    }
  }
}

// Blocks per multiprocessor: one multiplies while another stages its inputs.
template <TensorTokens kTokens>
constexpr unsigned kBlocks = kTokens == TensorTokens::many ? 2 : 3;
template <TensorTokens kTokens>
constexpr unsigned kThreads = expert_tensor_warps(kTokens) * gpu::kWarpThreads;

template <class Product, class Stored, TensorTokens kTokens, bool kFp8>
__global__ void __launch_bounds__(kThreads<kTokens>, kBlocks<kTokens>)
    tensor_kernel(device::ExpertProduct task, uint32_t staged_columns) {
  const device::TileAt tile = device::find_tile(task.tiles, gpu::block_index().x);
  if (tile.count == 0) return;
  TensorTiles<Stored, kTokens, kFp8>::template multiply<Product>(
      task, tile, {gpu::block_index().y, gpu::grid_blocks().y}, staged_columns, [] {});
}

template <class Stored, TensorTokens kTokens, bool kFp8>
__global__ void __launch_bounds__(kThreads<kTokens>, kBlocks<kTokens>) fused_tensor_kernel(device::FusedTask task) {
  device::run_fused_block<TensorTiles<Stored, kTokens, kFp8>>(task);
}

/// Most assignments of a tile, also if a token names an expert twice: the inputs of few tokens have no memory for more.
uint32_t tile_of(const ExpertsTask& task) {
  const uint32_t most = most_tokens(task);
  return most <= kTileTokens ? most : tensor_tile(most);
}

/// Launch of a product whose tiles hold up to `tokens` tokens.
template <class Product>
ExpertsTensorChoice choose(const ExpertsTask& task, const MatrixForm& form, uint32_t tokens) {
  return choose_experts_tensor(form, Product::kMatrices, tokens, expert_tiles_of(task, tile_of(task)));
}

template <class Product, class Stored, bool kFp8>
void run_product(gpu::Stream& stream, const ExpertsTensorChoice& choice, const device::ExpertProduct& task) {
  const auto launch = [&](auto kernel) { gpu::launch(stream, choice.shape, kernel, task, choice.staged_columns); };
  if (choice.tokens == TensorTokens::many) return launch(tensor_kernel<Product, Stored, TensorTokens::many, kFp8>);
  launch(tensor_kernel<Product, Stored, TensorTokens::few, kFp8>);
}

template <bool kFp8>
void round_tiles(gpu::Stream& stream, const ExpertsTask& experts, const device::ExpertProduct& task) {
  constexpr uint32_t kMaxWarps = 8;
  constexpr uint64_t kMaxBlocks = 65'535;  // in y
  const uint64_t blocks = task.rounded.columns / kRoundedBlock;
  const uint32_t tile = tile_of(experts);
  const gpu::LaunchShape shape{.grid_x = launch_count(expert_tiles_of(experts, tile)),
                               .grid_y = static_cast<unsigned>(std::min(blocks, kMaxBlocks)),
                               .threads = std::min(tile, kMaxWarps) * gpu::kWarpThreads};
  gpu::launch(stream, shape, round_tiles_kernel<kFp8>, task);
}

/// Rounds x unless it is rounded already: by token, or by tile if the tiles hold so few assignments that other tokens
/// would be most of the work.
template <bool kFp8>
void round_x(gpu::Stream& stream, const ExpertsTask& task, const device::ExpertProduct& gate_up) {
  if (task.rounded_x.values != nullptr) return;
  const uint32_t most = std::min(most_tokens(task), tile_of(task));
  if (task.cut.tiles > 0 && uint64_t{task.cut.tiles} * most <= task.tokens)
    return round_tiles<kFp8>(stream, task, gate_up);
  run_round_rows(stream, {.x = task.x, .rows = task.tokens, .in = gate_up.form.in, .to = gate_up.rounded});
}

/// A product with a shared expert's matrices, computed like linear_tensor.
device::SharedChoice choose_shared(const Matrix& matrix, uint32_t tokens) {
  constexpr uint64_t kInputBytes = 40 << 10;  // with the parts' sums no more than the routed experts' inputs
  device::SharedChoice choice;
  choice.warps_a_row = choose_linear_tensor(matrix.coding, matrix.out, matrix.in, tokens).warps_a_row;
  // A whole number of turns of the parts of a row, and of scale blocks.
  const uint32_t turn = std::max(choice.warps_a_row * 8 * codes_in_16_bytes(matrix.coding), device::kRoundedBlock);
  choice.staged = turn;
  const auto bytes_of = [&](uint32_t columns) { return device::shared_tensor_inputs(tokens, columns); };
  while (choice.staged < matrix.in && bytes_of(choice.staged + turn) <= kInputBytes)
    choice.staged += turn;
  const uint64_t parts = std::max(choice.warps_a_row, device::kSharedTensorWarps);  // parts of all warps
  choice.shared_bytes = device::kFewInputsAt + bytes_of(choice.staged) +
                        parts * device::kSharedValues * gpu::kWarpThreads * sizeof(float);
  return choice;
}

/// Nullopt: the steps must be launched separately.
std::optional<device::FusedTask> plan_fused(const ExpertsTask& task) {
  const auto blocks_of = [](uint32_t values) { return static_cast<uint32_t>(ceil_div(values, kRoundedBlock)); };
  const auto step = [](const ExpertsTensorChoice& choice) {
    return device::FusedStep{.shape = choice.shape, .staged = choice.staged_columns};
  };
  device::FusedSteps steps{.gate_up = step(choose<device::GateUp>(task, task.form.gate_up, most_tokens(task))),
                           .down = step(choose<device::Down>(task, task.form.down, most_tokens(task))),
                           .tile = tile_of(task),
                           .inner_blocks = blocks_of(task.form.down.in)};
  if (task.shared != nullptr) {
    const SharedExpert& shared = *task.shared;
    for (const Matrix* matrix : {&shared.gate, &shared.up, &shared.down}) {
      if (matrix->coding != task.form.gate_up.coding || !fits_tensor_cores(form_of(*matrix))) return std::nullopt;
    }
    if (task.tokens > kMaxTensorRows) return std::nullopt;
    steps.gate_up.shared = choose_shared(shared.gate, task.tokens);
    steps.down.shared = choose_shared(shared.down, task.tokens);
    const uint32_t rows =  // TensorTiles::rows_of_gate_up
        kFewWarps * expert_row_tiles(tensor_tokens(most_tokens(task))) * device::kRowsOfTile<device::GateUp>;
    steps.shared = {.gate_up_blocks = static_cast<uint32_t>(ceil_div(shared.gate.out, rows)),
                    .inner_blocks = blocks_of(shared.gate.out)};
  }
  return device::plan_fused(task, steps);
}

template <class Stored, bool kFp8>
void run(gpu::Stream& stream, const ExpertsTask& task) {
  const device::ExpertSteps steps =
      device::begin_expert_steps(stream, task, tile_of(task), kFp8 ? Precision::fp8 : Precision::bf16);
  round_x<kFp8>(stream, task, steps.gate_up);
  auto fused = plan_fused(task);
  DSPACK_CHECK(fused.has_value() || task.shared == nullptr, "a shared expert that is not computed with these");
  if (fused.has_value()) {
    device::begin_steps(*fused, task, steps);
    const auto launch = [&](auto kernel) { device::launch_fused(stream, kernel, *fused); };
    if (tensor_tokens(most_tokens(task)) == TensorTokens::one)
      return launch(fused_tensor_kernel<Stored, TensorTokens::one, kFp8>);
    return launch(fused_tensor_kernel<Stored, TensorTokens::few, kFp8>);
  }
  // Only the single launch of all steps has kernels for one token.
  const uint32_t tokens = std::max(most_tokens(task), 2U);
  const auto gate_up = choose<device::GateUp>(task, task.form.gate_up, tokens);
  run_product<device::GateUp, Stored, kFp8>(stream, gate_up, steps.gate_up);
  round_tiles<kFp8>(stream, task, steps.down);
  run_product<device::Down, Stored, kFp8>(stream, choose<device::Down>(task, task.form.down, tokens), steps.down);
  if (task.cut.tiles == 0) run_weighted_sum(stream, steps.sum);
}

bool has_scales(const ExpertsTask& task) {
  const SharedExpert* shared = task.shared;
  return task.form.gate_up.block_out > 0 || task.form.down.block_out > 0 ||
         (shared != nullptr &&
          (cuda::has_scales(shared->gate) || cuda::has_scales(shared->up) || cuda::has_scales(shared->down)));
}

// Shared memory for inputs: without rings two blocks fit the smallest multiprocessor, with rings one.
constexpr uint64_t kSharedBytes = 48 << 10;
constexpr uint64_t kMaxBlocks = 65'535;  // in y

}  // namespace

bool experts_fit_tensor_cores(const ExpertForm& form) {
  return fits_tensor_cores(form.gate_up) && fits_tensor_cores(form.down) && form.gate_up.coding == form.down.coding;
}

bool takes_shared_expert_tensor(const ExpertsTask& task) {
  return task.shared != nullptr && experts_fit_tensor_cores(task.form) && plan_fused(task).has_value();
}

ExpertsTensorChoice choose_experts_tensor(const MatrixForm& form, uint32_t matrices, uint32_t tokens, uint64_t tiles) {
  const uint32_t tile = tensor_tile(tokens);
  ExpertsTensorChoice choice;
  choice.tokens = tensor_tokens(tokens);
  const bool has_rings = choice.tokens != TensorTokens::many;
  const unsigned warps = expert_tensor_warps(choice.tokens);
  const uint64_t columns = round_up(form.in, device::kRoundedBlock);
  const uint64_t rows = has_rings ? std::clamp(tokens, 1U, tile) : tile;  // at most staged_rows
  const auto bytes_of = [&](uint64_t staged) {
    return rows * (staged * 2 + device::kRowPadding + staged / device::kRoundedBlock * sizeof(float));
  };
  uint64_t staged = device::kRoundedBlock;
  while (staged < columns && bytes_of(staged + device::kRoundedBlock) <= kSharedBytes)
    staged += device::kRoundedBlock;
  choice.staged_columns = static_cast<uint32_t>(staged);
  const uint64_t rows_of_warp = uint64_t{expert_row_tiles(choice.tokens)} * kTileRows / matrices;
  const uint64_t row_groups = ceil_div(form.out, rows_of_warp * warps);
  choice.shape.grid_x = launch_count(tiles);
  choice.shape.grid_y = static_cast<unsigned>(std::min(row_groups, kMaxBlocks));
  choice.shape.threads = warps * gpu::kWarpThreads;
  choice.shape.shared_bytes = static_cast<unsigned>((has_rings ? device::kFewInputsAt : 0) + bytes_of(staged));
  return choice;
}

void run_experts_tensor(gpu::Stream& stream, const ExpertsTask& task, Precision precision) {
  DSPACK_CHECK(experts_fit_tensor_cores(task.form), "experts that the tensor cores do not multiply exactly");
  if (task.tokens == 0) return;
  device::with_tensor_codes(task.form.gate_up.coding, has_scales(task), [&]<class Stored>(Stored) {
    constexpr bool kIsF8 = Stored::kCoding == Coding::f8_e4m3;
    kIsF8&& precision == Precision::fp8 ? run<Stored, kIsF8>(stream, task) : run<Stored, false>(stream, task);
  });
}

}  // namespace dspack::kernels::cuda
