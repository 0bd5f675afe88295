// A block has 8 warps; `warps_a_row` of them share two matrix rows at a time and take turns on their chunks (dot.cuh).
//
//   warp        0   1   2   3   4   5   6   7        warps_a_row = 2
//   rows of     \-A-/   \-B-/   \-C-/   \-D-/        8 rows per turn of the block
//
// The input rows of the block (1 to 8) are in shared memory, a tile of columns at a time; weights pass through a ring
// there (device/weight_stream.cuh). Blocks loop over the matrix with the stride of the grid, so that an input which
// fits one tile is staged once.
#include "kernels/cuda/linear/linear.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/tokens/route.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kRowsOfWarp = 2;

struct LinearPlan {
  unsigned warps_a_row;
  uint32_t tile_groups;
};

/// Adds the totals of a row's warps, in order, and stores the sum.
template <unsigned kTokens>
__device__ void store_totals(const LinearTask& task, const LinearPlan& plan, uint32_t first_row, uint32_t first_token,
                             float (&totals)[kRowsOfWarp][kTokens], float* shared) {
  const unsigned warp = gpu::warp_index();
  const unsigned lane = gpu::lane_index();
#pragma unroll
  for (unsigned row = 0; row < kRowsOfWarp; ++row) {
#pragma unroll
    for (unsigned token = 0; token < kTokens; ++token) {
      const float total = gpu::sum_of_warp(totals[row][token]);
      if (lane == 0) shared[(warp * kRowsOfWarp + row) * kTokens + token] = total;
    }
  }
  gpu::block_barrier();  // all totals are written before they are read
  if (warp % plan.warps_a_row == 0 && lane < kRowsOfWarp * kTokens) {
    const unsigned row = lane / kTokens;
    const unsigned token = lane % kTokens;
    float sum = 0;
    for (unsigned part = 0; part < plan.warps_a_row; ++part)
      sum += shared[((warp + part) * kRowsOfWarp + row) * kTokens + token];
    if (first_row + row < task.weight.out && first_token + token < task.rows) {
      float& y = task.y.data[(first_token + token) * task.y.stride + first_row + row];
      y = task.adds ? y + sum : sum;
    }
  }
  gpu::block_barrier();  // all totals are read before the next rows' are written
}

/// Blocks per multiprocessor that registers are budgeted for. Its shared memory, 227 KiB on the largest and 100 on the
/// smallest, fits four and two blocks of few tokens, three and one of many.
template <unsigned kTokens>
constexpr unsigned kBlocks = kTokens == 1   ? 4
                             : kTokens == 2 ? 3
                                            : 2;
/// Steps that a warp has in flight (weight_stream.cuh): with these blocks at least 48 KiB of weights per
/// multiprocessor.
template <unsigned kTokens>
constexpr unsigned kDepth = kTokens <= 2 ? 2 : 3;
template <unsigned kTokens>
constexpr unsigned kPieces = device::kPiecesUnderWay<1, kRowsOfWarp, kDepth<kTokens>>;

/// The work of block `block` of the `blocks` that share the rows of the matrix.
template <class Stored, unsigned kTokens, bool kAligned>
__device__ __forceinline__ void multiply_rows(const LinearTask& task, const LinearPlan& plan, uint32_t block,
                                              uint32_t blocks) {
  gpu::launch_dependents();
  const uint64_t token_group = gpu::block_index().y + uint64_t{gpu::block_index().z} * gpu::grid_blocks().y;
  if (token_group * kTokens >= task.rows) return gpu::griddepcontrol_wait();
  const auto first_token = static_cast<uint32_t>(token_group * kTokens);
  const uint32_t tokens = task.rows - first_token < kTokens ? task.rows - first_token : kTokens;
  const unsigned lanes = plan.warps_a_row * gpu::kWarpThreads;
  const unsigned rows_of_block = kWarpsOfBlock / plan.warps_a_row * kRowsOfWarp;
  const uint32_t lane = gpu::warp_index() % plan.warps_a_row * gpu::kWarpThreads + gpu::lane_index();
  const uint32_t chunks = (task.weight.in - 1) / Stored::kPer16 + 1;
  const uint32_t tile_chunks = plan.tile_groups * gpu::kWarpThreads;
  const uint32_t stride = plan.tile_groups * Stored::kQuarters * gpu::kWarpThreads;
  auto* inputs = gpu::shared_memory<float4>();
  auto* sums = reinterpret_cast<float*>(inputs + kTokens * stride);
  const Matrix matrices[1] = {task.weight};
  const device::WarpRows<kRowsOfWarp> all{0, task.weight.out, blocks * rows_of_block};
  uint32_t first_row = block * rows_of_block + gpu::warp_index() / plan.warps_a_row * kRowsOfWarp;  // the warp's
  // Weights do not depend on earlier launches, so the first are requested before the inputs.
  auto stream = device::stream_of<kAligned, Stored, kDepth<kTokens>>(sums + kWarpsOfBlock * kRowsOfWarp * kTokens,
                                                                     matrices, all, first_row, chunks, lane, lanes);
  const device::ScalePlan<Stored> scales(task.weight);
  gpu::griddepcontrol_wait();
  bool is_staged = false;
  for (uint32_t block_row = block * rows_of_block; block_row < task.weight.out;
       block_row += all.step, first_row += all.step) {
    uint32_t rows[kRowsOfWarp];
    all.find(first_row, rows);
    float totals[1][kRowsOfWarp][kTokens] = {};
    for (uint32_t first = 0; first < chunks; first += tile_chunks) {
      if (!is_staged) {
        device::stage_inputs<Stored, kTokens>(
            task.x, task.weight.in, tokens, [&](uint32_t token) { return uint64_t{first_token} + token; },
            first * Stored::kPer16, plan.tile_groups, inputs);
        is_staged = chunks <= tile_chunks;
      }
      const uint32_t end = first + tile_chunks < chunks ? first + tile_chunks : chunks;
      if (first_row < task.weight.out)
        device::add_share<Stored>(matrices, scales, rows, {first, end, lane, lanes, inputs, stride}, stream, totals);
    }
    store_totals(task, plan, first_row, first_token, totals[0], sums);
  }
}

template <class Stored, unsigned kTokens, bool kAligned>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, kBlocks<kTokens>)
    linear_kernel(LinearTask task, LinearPlan plan) {
  multiply_rows<Stored, kTokens, kAligned>(task, plan, gpu::block_index().x, gpu::grid_blocks().x);
}

/// Products of one launch, each with its own consecutive blocks.
struct LinearParts {
  struct LaunchedProduct {
    LinearTask task;
    LinearPlan plan;
    uint32_t first_block;
    uint32_t blocks;
  };
  LaunchedProduct parts[kMaxProducts];
  uint32_t count;
};

template <class Stored, unsigned kTokens>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, kBlocks<kTokens>)
    linear_each_kernel(LinearParts products) {
  uint32_t which = 0;
  while (which + 1 < products.count && gpu::block_index().x >= products.parts[which + 1].first_block)
    ++which;
  const LinearParts::LaunchedProduct& part = products.parts[which];
  multiply_rows<Stored, kTokens, true>(part.task, part.plan, gpu::block_index().x - part.first_block, part.blocks);
}

template <class Stored, unsigned kTokens>
__global__ void __launch_bounds__(kWarpsOfBlock* gpu::kWarpThreads, kBlocks<kTokens>)
    linear_route_kernel(LinearTask task, LinearPlan plan, RouteEnd end) {
  device::prefetch_bias(end.task);
  multiply_rows<Stored, kTokens, true>(task, plan, gpu::block_index().x, gpu::grid_blocks().x);
  gpu::cp_async_wait_group<0>();  // zero-fills that were issued after the last row
  device::route_last(end.task, end.counter);
}

template <class Stored, bool kAligned>
void launch_linear(gpu::Stream& stream, const LinearTask& task, const LinearChoice& choice) {
  const LinearPlan plan{.warps_a_row = choice.warps_a_row, .tile_groups = choice.tile_groups};
  device::with_tokens<Stored, kAligned>(
      choice.tokens, [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>) {
        gpu::launch_overlapping(stream, choice.shape, linear_kernel<Stored, kTokens, kAligned>, task, plan);
      });
}

template <class Stored>
void run(gpu::Stream& stream, const LinearTask& task, const LinearChoice& choice) {
  if (has_aligned_rows(form_of(task.weight))) return launch_linear<Stored, true>(stream, task, choice);
  launch_linear<Stored, false>(stream, task, choice);
}

// Several blocks share a multiprocessor's memory (100 KiB on the smallest), and each hides the others' barriers.
constexpr uint64_t kSharedBytes = 32 << 10;
constexpr unsigned kBlocksOfMultiprocessor = 4;
// Blocks that keep every current card busy: 132 to 192 multiprocessors. A constant rather than the card's number, since
// the last bits of a value depend on it.
constexpr uint32_t kEnoughBlocks = 256;

/// A few rows are shared by several warps, since most of the card would otherwise be idle; but each lane should have
/// work.
unsigned warps_for(uint32_t out, uint64_t chunks) {
  unsigned warps = 1;
  while (warps < kWarpsOfBlock && ceil_div(out, kRowsOfWarp * kWarpsOfBlock / warps) < kEnoughBlocks &&
         chunks >= uint64_t{4} * warps * gpu::kWarpThreads)
    warps *= 2;
  return warps;
}

unsigned pieces_for(unsigned tokens) {
  return tokens <= 2 ? kPieces<1> : kPieces<kMaxKernelTokens>;
}

}  // namespace

LinearChoice choose_linear(Coding coding, uint32_t out, uint32_t in, uint32_t rows, unsigned multiprocessors,
                           bool is_aligned) {
  const uint32_t per_chunk = codes_in_16_bytes(coding);
  const uint64_t chunks = ceil_div(in, per_chunk);
  LinearChoice choice;
  choice.warps_a_row = warps_for(out, chunks);
  choice.tokens = kernel_tokens(coding, is_aligned, rows);
  // A tile is a whole number of turns of the lanes that share a row.
  const uint64_t group_bytes = uint64_t{gpu::kWarpThreads} * per_chunk * sizeof(float) * choice.tokens;
  const uint64_t turn = choice.warps_a_row;
  const uint64_t groups = ceil_div(chunks, gpu::kWarpThreads);
  const uint64_t that_fit = std::max<uint64_t>(1, kSharedBytes / (group_bytes * turn)) * turn;
  choice.tile_groups = static_cast<uint32_t>(std::min(that_fit, ceil_div(groups, turn) * turn));
  const auto row_groups = static_cast<uint32_t>(ceil_div(out, kRowsOfWarp * kWarpsOfBlock / choice.warps_a_row));
  const auto token_groups = static_cast<uint32_t>(ceil_div(rows, choice.tokens));
  constexpr uint32_t kMaxBlocks = 65'535;  // in y; more follow in z
  choice.shape.grid_x = std::min(row_groups, std::max(1U, multiprocessors * kBlocksOfMultiprocessor));
  choice.shape.grid_y = std::min(token_groups, kMaxBlocks);
  choice.shape.grid_z = static_cast<unsigned>(ceil_div(token_groups, kMaxBlocks));
  choice.shape.threads = kWarpsOfBlock * gpu::kWarpThreads;
  const uint64_t totals_bytes = uint64_t{kWarpsOfBlock} * kRowsOfWarp * choice.tokens * sizeof(float);
  choice.shape.shared_bytes = static_cast<unsigned>(choice.tile_groups * group_bytes + totals_bytes) +
                              device::stream_bytes(choice.shape.threads, pieces_for(choice.tokens));
  return choice;
}

void linear_exact(gpu::Stream& stream, const LinearTask& task, unsigned multiprocessors) {
  if (task.rows == 0 || task.weight.out == 0) return;
  const LinearChoice choice = choose_linear(task.weight.coding, task.weight.out, task.weight.in, task.rows,
                                            multiprocessors, has_aligned_rows(form_of(task.weight)));
  device::with_stored(task.weight.coding, [&]<class Stored>(Stored) { run<Stored>(stream, task, choice); });
}

bool fits_one_launch(std::span<const LinearTask> tasks) {
  const auto fits = [&](const LinearTask& task) {
    return task.weight.coding == tasks.front().weight.coding && has_aligned_rows(form_of(task.weight));
  };
  return !tasks.empty() && tasks.size() <= kMaxProducts && tasks.front().rows <= kMaxKernelTokens &&
         is_common(tasks.front().weight.coding) && std::ranges::all_of(tasks, fits);
}

void linear_exact_each(gpu::Stream& stream, std::span<const LinearTask> tasks, unsigned multiprocessors) {
  LinearParts products = {};
  LinearChoice all;
  all.shape.grid_x = 0;
  for (const LinearTask& task : tasks) {
    const LinearChoice choice =
        choose_linear(task.weight.coding, task.weight.out, task.weight.in, task.rows, multiprocessors);
    products.parts[products.count++] = {.task = task,
                                        .plan = {.warps_a_row = choice.warps_a_row, .tile_groups = choice.tile_groups},
                                        .first_block = all.shape.grid_x,
                                        .blocks = choice.shape.grid_x};
    all.tokens = choice.tokens;
    all.shape.grid_x += choice.shape.grid_x;
    all.shape.threads = choice.shape.threads;
    all.shape.shared_bytes = std::max(all.shape.shared_bytes, choice.shape.shared_bytes);
  }
  device::with_common(tasks.front().weight.coding, [&]<class Stored>(Stored) {
    device::with_tokens<Stored, true>(all.tokens, [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>) {
      gpu::launch_overlapping(stream, all.shape, linear_each_kernel<Stored, kTokens>, products);
    });
  });
}

bool takes_route(const LinearTask& task) {
  const Coding coding = task.weight.coding;
  return (coding == Coding::bf16 || coding == Coding::f32) && !has_scales(task.weight) &&
         has_aligned_rows(form_of(task.weight)) && task.rows <= kMaxKernelTokens;
}

void linear_exact_route(gpu::Stream& stream, const LinearTask& task, const RouteEnd& end, unsigned multiprocessors) {
  LinearChoice choice = choose_linear(task.weight.coding, task.weight.out, task.weight.in, task.rows, multiprocessors);
  choice.shape.shared_bytes = std::max(choice.shape.shared_bytes, choose_route_launch(end.task).shared_bytes);
  const LinearPlan plan{.warps_a_row = choice.warps_a_row, .tile_groups = choice.tile_groups};
  const auto run = [&]<class Stored>(Stored) {
    device::with_tokens<Stored, true>(choice.tokens, [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>) {
      gpu::launch_overlapping(stream, choice.shape, linear_route_kernel<Stored, kTokens>, task, plan, end);
    });
  };
  if (task.weight.coding == Coding::bf16) return run(device::StoredBf16());
  run(device::StoredF32());
}

}  // namespace dspack::kernels::cuda
