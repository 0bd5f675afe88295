// A block has 8 warps; `warps_a_row` of them share the columns of the same 16 (or 32) matrix rows, taking turns of 128
// bytes. The inputs of the block, up to 64 rounded rows, are in shared memory, a tile of columns at a time. For up to 8
// input rows weights pass through a ring there (linear/tile_stream.cuh), requested before the previous launch has
// ended; for more rows they are loaded from global memory straight into the registers of the lanes that multiply them
// (linear/tensor_rows.cuh).
//
//                 columns ->   step 0     1    2    3    4 ..
//   16 matrix rows   warp          0    1    2    3    0 ..      warps_a_row = 4
//   next 16          warp          4    5    6    7    4 ..
#include "kernels/cuda/linear/linear.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/linear/tensor_rows.cuh"
#include "kernels/cuda/tokens/route.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
using device::kTileRows;
using device::kTileTokens;

struct TensorPlan {
  unsigned warps_a_row;
  uint32_t tile_columns;
};

// Steps of a ring. Usually two are in flight, 96 KiB on a multiprocessor with three blocks. If there are at most two
// blocks per multiprocessor, four are, so that a block's reads take fewer memory latencies.
constexpr unsigned kNoRing = 0;
constexpr unsigned kUsualDepth = 3;
constexpr unsigned kDeepDepth = 5;
/// Shared memory of a block's rings, before its inputs.
__host__ __device__ constexpr uint32_t rings_bytes(unsigned depth) {
  return kWarpsOfBlock * depth * device::kTileStreamBytes<1, 1>;
}

template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, bool kFp8>
struct TensorBlock {
  static constexpr unsigned kTokens = kTokenTiles * kTileTokens;
  using Rows = device::TensorRows<Stored, kTokenTiles, kRowTiles, 1, kFp8>;
  using Sums = typename Rows::Sums;

  const TensorTask& task;
  const TensorPlan& plan;
  uint32_t first_token;
  uint32_t count;  // tokens that exist
  device::StagedInputs inputs;

  /// Stages the inputs' columns from `first` on.
  __device__ void stage(uint32_t first) const {
    inputs.template stage<kFp8, (kTokenTiles > 1)>(task.x, first, count,
                                                   [&](uint32_t token) { return first_token + token; });
  }

  __device__ void store(uint32_t first_row, const Sums& totals) const {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const uint32_t row = first_row + tile * kTileRows + i / 2 * 8 + group;
          const uint32_t token = first_token + tokens * kTileTokens + 2 * quad + i % 2;
          if (row >= task.weight.out || token >= task.rows) continue;
          float& y = task.y.data[token * task.y.stride + row];
          y = task.adds ? y + totals[tile][tokens][i] : totals[tile][tokens][i];
        }
      }
    }
  }

  /// Adds the sums of a row's warps, in order, in the first of them. The inputs are no longer needed.
  __device__ void add_up(unsigned part, Sums& totals) const {
    constexpr unsigned kValues = kRowTiles * kTokenTiles * 4;
    auto* sums = reinterpret_cast<float*>(inputs.shared);
    float* flat = &totals[0][0][0];
    gpu::block_barrier();  // every warp has finished with the inputs, whose memory the sums reuse
    if (part > 0) {
      for (unsigned i = 0; i < kValues; ++i)
        sums[(gpu::warp_index() * kValues + i) * gpu::kWarpThreads + gpu::lane_index()] = flat[i];
    }
    gpu::block_barrier();  // all sums are stored
    if (part > 0) return;
    for (unsigned other = 1; other < plan.warps_a_row; ++other) {
      for (unsigned i = 0; i < kValues; ++i)
        flat[i] += sums[((gpu::warp_index() + other) * kValues + i) * gpu::kWarpThreads + gpu::lane_index()];
    }
  }
};

/// The work of block `row_block` of those that share the rows of the matrix.
template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, bool kFp8, unsigned kDepth>
__device__ __forceinline__ void multiply_rows(const TensorTask& task, const TensorPlan& plan, uint32_t row_block) {
  using Block = TensorBlock<Stored, kTokenTiles, kRowTiles, kFp8>;
  constexpr bool kHasRing = kDepth != kNoRing;
  static_assert(kHasRing == (kTokenTiles == 1));
  gpu::launch_dependents();
  const uint64_t token_group = gpu::block_index().y + uint64_t{gpu::block_index().z} * gpu::grid_blocks().y;
  if (token_group * Block::kTokens >= task.rows) return gpu::griddepcontrol_wait();
  const auto first_token = static_cast<uint32_t>(token_group * Block::kTokens);
  const uint32_t count = task.rows - first_token < Block::kTokens ? task.rows - first_token : Block::kTokens;
  auto* shared = gpu::shared_memory<unsigned char>();
  const Block block{.task = task,
                    .plan = plan,
                    .first_token = first_token,
                    .count = count,
                    .inputs = {.shared = shared + rings_bytes(kDepth),
                               .columns = plan.tile_columns,
                               .rows = device::staged_rows<kTokenTiles>(count)}};
  const unsigned part = gpu::warp_index() & (plan.warps_a_row - 1);  // a power of two
  const uint32_t first_row =
      ((row_block * kWarpsOfBlock + gpu::warp_index()) >> gpu::popc(plan.warps_a_row - 1)) * (kRowTiles * kTileRows);
  const Matrix matrices[1] = {task.weight};
  const uint32_t first_column = part * device::kStepColumns<Stored>;
  const uint32_t turn = plan.warps_a_row * device::kStepColumns<Stored>;
  typename Block::Rows rows;
  typename Block::Sums totals[1] = {};
  const auto multiply = [&](const auto& add_tile) {
    for (uint32_t first = 0; first < task.weight.in; first += plan.tile_columns) {
      gpu::block_barrier();  // every warp has finished the previous tile
      block.stage(first);
      gpu::block_barrier();  // the tile is staged
      const uint32_t end = task.weight.in - first < plan.tile_columns ? task.weight.in : first + plan.tile_columns;
      add_tile({.staged_first = first, .begin = first + first_column, .end = end, .turn = turn});
    }
  };
  if constexpr (kHasRing) {
    // Weights do not depend on earlier launches, so the first are requested before the inputs.
    device::TileStream<Stored, 1, kRowTiles, kDepth> stream(
        shared + gpu::warp_index() * device::kTileStreamBytes<kRowTiles, kDepth>, matrices,
        {.first = first_row, .rows_of_turn = 0, .sets = 1, .first_column = first_column, .columns_of_turn = turn});
    rows.find(matrices, first_row);
    const device::BlockOfRun<Stored> block_of(task.weight);
    auto ahead = rows.first_scales(matrices, block_of, first_column, turn);
    gpu::griddepcontrol_wait();
    multiply([&](const device::ColumnRange& range) {
      rows.template add_steps<1>(matrices, block_of, range, block.inputs, stream, ahead, totals);
    });
  } else {
    const uint32_t rows_of_block = kWarpsOfBlock / plan.warps_a_row * kRowTiles * kTileRows;
    device::prefetch_rows<Stored>(task.weight, task.weight.planes[kCodes], row_block * rows_of_block, rows_of_block,
                                  device::kEarlyBytes);
    rows.find(matrices, first_row);
    gpu::griddepcontrol_wait();
    multiply([&](const device::ColumnRange& range) {
      rows.template add_columns<2>(matrices, range, block.inputs, totals[0]);
    });
  }
  if (plan.warps_a_row > 1) block.add_up(part, totals[0]);
  if (part == 0) block.store(first_row, totals[0]);
}

/// Blocks per multiprocessor that registers are budgeted for.
template <unsigned kDepth>
constexpr unsigned kBlocks = kDepth == kUsualDepth  ? 3
                             : kDepth == kDeepDepth ? 2
                                                    : 1;

template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, bool kFp8, unsigned kDepth>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, kBlocks<kDepth>)
    tensor_kernel(TensorTask task, TensorPlan plan) {
  multiply_rows<Stored, kTokenTiles, kRowTiles, kFp8, kDepth>(task, plan, gpu::block_index().x);
}

/// Products of one launch, each with its own consecutive blocks.
struct TensorParts {
  struct LaunchedProduct {
    TensorTask task;
    TensorPlan plan;
    uint32_t first_block;
  };
  LaunchedProduct parts[kMaxProducts];
  uint32_t count;
};

template <class Stored, bool kFp8, unsigned kDepth>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, kBlocks<kDeepDepth>)
    tensor_each_kernel(TensorParts products) {
  uint32_t which = 0;
  while (which + 1 < products.count && gpu::block_index().x >= products.parts[which + 1].first_block)
    ++which;
  const TensorParts::LaunchedProduct& part = products.parts[which];
  multiply_rows<Stored, 1, 1, kFp8, kDepth>(part.task, part.plan, gpu::block_index().x - part.first_block);
}

template <unsigned kDepth>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, kBlocks<kDeepDepth>)
    tensor_route_kernel(TensorTask task, TensorPlan plan, RouteEnd end) {
  device::prefetch_bias(end.task);
  multiply_rows<device::StoredPlainBf16, 1, 1, false, kDepth>(task, plan, gpu::block_index().x);
  device::route_last(end.task, end.counter);
}

template <class Stored, bool kFp8>
void run(gpu::Stream& stream, const TensorTask& task) {
  const TensorChoice choice = choose_linear_tensor(task.weight.coding, task.weight.out, task.weight.in, task.rows);
  const TensorPlan plan{.warps_a_row = choice.warps_a_row, .tile_columns = choice.tile_columns};
  const auto launch = [&](auto kernel) { gpu::launch_overlapping(stream, choice.shape, kernel, task, plan); };
  switch (choice.token_tiles) {
    case 1:
      if (choice.ring_steps == kDeepDepth) return launch(tensor_kernel<Stored, 1, 1, kFp8, kDeepDepth>);
      return launch(tensor_kernel<Stored, 1, 1, kFp8, kUsualDepth>);
    case 2: return launch(tensor_kernel<Stored, 2, 1, kFp8, kNoRing>);
    case 4: return launch(tensor_kernel<Stored, 4, 2, kFp8, kNoRing>);
    default: return launch(tensor_kernel<Stored, 8, 2, kFp8, kNoRing>);
  }
}

constexpr unsigned kMaxTokenTiles = 8;
static_assert(kMaxTensorRows == kTileTokens);
constexpr uint32_t kEnoughBlocks = 224;  // over 1.5 per multiprocessor if there are 132, over 1 if there are 192
// Shared memory for inputs: without rings two blocks fit the smallest multiprocessor, with rings one.
constexpr uint64_t kSharedBytes = 48 << 10;
constexpr uint64_t kMaxSharedBytes = 68 << 10;   // if a tile has only one turn's columns
constexpr uint64_t kDeepSharedBytes = 17 << 10;  // all inputs, besides deep rings
constexpr uint64_t kFewBlocks = 264;             // two per multiprocessor if there are 132

/// Columns of a chunk; a step has two chunks (linear/tile_stream.cuh).
uint32_t chunk_columns(Coding coding) {
  return 4 * codes_in_16_bytes(coding);
}

/// Few enough that a turn's columns of a block of 32 input rows fit the shared memory.
unsigned warps_for(Coding coding, uint32_t out, uint32_t chunks) {
  const unsigned most = is_packed(coding) ? kWarpsOfBlock / 2 : kWarpsOfBlock;
  unsigned warps = 1;
  while (warps < most && ceil_div(out, kTileRows * kWarpsOfBlock / warps) < kEnoughBlocks && chunks >= 8 * warps)
    warps *= 2;
  return warps;
}

}  // namespace

bool fits_tensor_cores(const MatrixForm& weight) {
  if (!is_common(weight.coding)) return false;
  if (weight.coding == Coding::e2m1) {  // scales are folded (linear/packed_tiles.cuh)
    const bool is_folded = (weight.scale == ScaleCoding::f8_e8m0 || weight.scale == ScaleCoding::f8_e4m3) &&
                           (weight.block_in == kPackedRun || weight.block_in == device::kRunColumns);
    if (!is_folded || weight.block_out != 1 || weight.in % chunk_columns(weight.coding) != 0) return false;
  }
  const bool whole_blocks = weight.block_out == 0 || is_packed(weight.coding) || weight.block_in >= weight.in ||
                            weight.block_in % chunk_columns(weight.coding) == 0;
  return has_aligned_rows(weight) && whole_blocks;
}

TensorChoice choose_linear_tensor(Coding coding, uint32_t out, uint32_t in, uint32_t rows) {
  const uint32_t chunk = chunk_columns(coding);
  TensorChoice choice;
  choice.warps_a_row = warps_for(coding, out, static_cast<uint32_t>(ceil_div(in, chunk)));
  // A tile of columns is a whole number of turns of the warps that share a row, and of scale blocks.
  const uint32_t turn = std::max(choice.warps_a_row * 2 * chunk, device::kRoundedBlock);
  const auto bytes_of = [&](unsigned token_tiles, uint64_t columns) {
    const uint64_t tokens = uint64_t{token_tiles} * kTileTokens;
    const uint64_t staged = token_tiles == 1 ? std::min<uint64_t>(rows, tokens) : tokens;  // staged_rows
    return staged * (columns * 2 + device::kRowPadding + columns / device::kRoundedBlock * sizeof(float));
  };
  while (choice.token_tiles < kMaxTokenTiles && choice.token_tiles * kTileTokens < rows &&
         bytes_of(2 * choice.token_tiles, turn) <= kMaxSharedBytes)
    choice.token_tiles *= 2;
  choice.row_tiles = choice.token_tiles >= 4 ? 2 : 1;
  const uint64_t tokens = uint64_t{choice.token_tiles} * kTileTokens;
  choice.tile_columns = turn;
  while (choice.tile_columns < in && bytes_of(choice.token_tiles, uint64_t{choice.tile_columns} + turn) <= kSharedBytes)
    choice.tile_columns += turn;
  // The sums of all warps but the first of each row reuse the memory of the inputs.
  const uint64_t sums_bytes =
      uint64_t{kWarpsOfBlock} * gpu::kWarpThreads * choice.row_tiles * choice.token_tiles * 4 * sizeof(float);
  const uint64_t row_groups = ceil_div(out, kTileRows * choice.row_tiles * kWarpsOfBlock / choice.warps_a_row);
  const uint64_t token_groups = ceil_div(rows, tokens);
  constexpr uint64_t kMaxBlocks = 65'535;  // in y; more follow in z
  choice.shape.grid_x = static_cast<unsigned>(row_groups);
  choice.shape.grid_y = static_cast<unsigned>(std::min(token_groups, kMaxBlocks));
  choice.shape.grid_z = static_cast<unsigned>(ceil_div(token_groups, kMaxBlocks));
  choice.shape.threads = kWarpsOfBlock * gpu::kWarpThreads;
  if (choice.token_tiles == 1) {
    const bool is_deep = row_groups * token_groups <= kFewBlocks && choice.tile_columns >= in &&
                         bytes_of(1, choice.tile_columns) <= kDeepSharedBytes;
    choice.ring_steps = is_deep ? kDeepDepth : kUsualDepth;
  }
  choice.shape.shared_bytes = static_cast<unsigned>(
      rings_bytes(choice.ring_steps) +
      std::max(bytes_of(choice.token_tiles, choice.tile_columns), choice.warps_a_row == 1 ? uint64_t{0} : sums_bytes));
  return choice;
}

void linear_tensor(gpu::Stream& stream, const TensorTask& task) {
  if (task.rows == 0 || task.weight.out == 0) return;
  device::with_tensor_codes(task.weight.coding, has_scales(task.weight), [&]<class Stored>(Stored) {
    constexpr bool kIsF8 = Stored::kCoding == Coding::f8_e4m3;
    kIsF8&& task.x.scales != nullptr ? run<Stored, kIsF8>(stream, task) : run<Stored, false>(stream, task);
  });
}

void linear_tensor_each(gpu::Stream& stream, std::span<const TensorTask> tasks) {
  TensorParts products = {};
  gpu::LaunchShape shape{.grid_x = 0};
  bool is_deep = true;
  bool is_scaled = false;
  for (const TensorTask& task : tasks) {
    const TensorChoice choice = choose_linear_tensor(task.weight.coding, task.weight.out, task.weight.in, task.rows);
    products.parts[products.count++] = {
        .task = task,
        .plan = {.warps_a_row = choice.warps_a_row, .tile_columns = choice.tile_columns},
        .first_block = shape.grid_x};
    shape.grid_x += choice.shape.grid_x;
    shape.threads = choice.shape.threads;
    shape.shared_bytes = std::max(shape.shared_bytes, choice.shape.shared_bytes - rings_bytes(choice.ring_steps));
    is_deep = is_deep && choice.ring_steps == kDeepDepth;
    is_scaled = is_scaled || has_scales(task.weight);
  }
  is_deep = is_deep && shape.grid_x <= kFewBlocks;
  shape.shared_bytes += rings_bytes(is_deep ? kDeepDepth : kUsualDepth);
  device::with_tensor_codes(tasks.front().weight.coding, is_scaled, [&]<class Stored>(Stored) {
    constexpr bool kIsF8 = Stored::kCoding == Coding::f8_e4m3;
    const auto launch = [&](auto kernel) { gpu::launch_overlapping(stream, shape, kernel, products); };
    if (kIsF8 && tasks.front().x.scales != nullptr) {
      if (is_deep) return launch(tensor_each_kernel<Stored, kIsF8, kDeepDepth>);
      return launch(tensor_each_kernel<Stored, kIsF8, kUsualDepth>);
    }
    if (is_deep) return launch(tensor_each_kernel<Stored, false, kDeepDepth>);
    launch(tensor_each_kernel<Stored, false, kUsualDepth>);
  });
}

void linear_tensor_route(gpu::Stream& stream, const TensorTask& task, const RouteEnd& end) {
  TensorChoice choice = choose_linear_tensor(task.weight.coding, task.weight.out, task.weight.in, task.rows);
  choice.shape.shared_bytes = std::max(choice.shape.shared_bytes, choose_route_launch(end.task).shared_bytes);
  const TensorPlan plan{.warps_a_row = choice.warps_a_row, .tile_columns = choice.tile_columns};
  const auto launch = [&](auto kernel) { gpu::launch_overlapping(stream, choice.shape, kernel, task, plan, end); };
  if (choice.ring_steps == kDeepDepth) return launch(tensor_route_kernel<kDeepDepth>);
  launch(tensor_route_kernel<kUsualDepth>);
}

}  // namespace dspack::kernels::cuda
