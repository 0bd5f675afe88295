// A block has four warps, each with 16 queries of one head: their operands stay in registers, as do scores, which
// become operands of the product with values without passing through shared memory. A position is one row in shared
// memory, [key | value | rotary key] in BF16, 64 rows per tile; the next tile is copied while one is used.
#include "kernels/cuda/attention/attend_expanded.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/attention/attend.cuh"
#include "kernels/cuda/attention/expanded_keys.h"
#include "kernels/cuda/attention/tensor_keys.cuh"
#include "kernels/cuda/linear/linear.h"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarps = 4;
constexpr unsigned kThreads = kWarps * gpu::kWarpThreads;
constexpr uint32_t kTileQueries = kExpandedTileQueries;
constexpr uint32_t kTilePositions = kExpandedTilePositions;
static_assert(kTileQueries == kWarps * 16);
constexpr unsigned kStages = 2;
constexpr uint32_t kMaxKeyDim = 192;
constexpr uint32_t kMaxValueDim = 128;

/// Attention of some heads.
struct ExpandedRun {
  RowsAt<const float> queries;
  float* out;
  const uint16_t* keys;  // ExpandedKeysTask
  const uint16_t* ropes;
  uint32_t rows;
  uint32_t first_head;  // the first of these heads
  uint32_t all_heads;
  uint32_t rope_dim;
  uint32_t nope_dim;
  uint32_t value_dim;
  uint32_t positions;
  uint32_t first_position;
  uint32_t row_bytes;  // bytes of a position in shared memory
  float scale;
  [[nodiscard]] __device__ __forceinline__ uint32_t head_dim() const { return nope_dim + value_dim; }
};

/// Rows of positions in shared memory.
struct Tile {
  unsigned char* rows;
  uint32_t row_bytes;
  [[nodiscard]] __device__ __forceinline__ unsigned char* at(uint32_t row, uint32_t piece) const {
    return rows + device::swizzled(row, row_bytes, piece);
  }
};

/// Starts copying the positions from `first` on, zeros from `end` on. Call with every thread of the block.
__device__ __forceinline__ void fetch_tile(const ExpandedRun& run, uint32_t head, uint32_t first, uint32_t end,
                                           const Tile& tile) {
  const uint32_t dim = run.head_dim();
  const uint32_t head_pieces = dim / device::kPieceValues;
  const uint32_t pieces = head_pieces + run.rope_dim / device::kPieceValues;
  for (uint32_t row = gpu::warp_index(); row < kTilePositions; row += kWarps) {
    const bool is_there = first + row < end;
    const uint64_t position = is_there ? first + row : 0;
    const uint16_t* key = run.keys + (uint64_t{head} * run.positions + position) * dim;
    const uint16_t* rope = run.ropes + position * run.rope_dim;
    for (uint32_t piece = gpu::lane_index(); piece < pieces; piece += gpu::kWarpThreads) {
      const uint16_t* from = piece < head_pieces ? key + piece * device::kPieceValues
                                                 : rope + (piece - head_pieces) * device::kPieceValues;
      gpu::cp_async(tile.at(row, piece), from, is_there);
    }
  }
  gpu::cp_async_commit_group();
}

/// Rounds the queries of a block into shared memory, zero-padded after the last row. Call with every thread of the
/// block.
__device__ __forceinline__ void load_queries(const ExpandedRun& run, uint32_t head, uint32_t first_row,
                                             const Tile& tile) {
  const uint32_t key_dim = run.nope_dim + run.rope_dim;
  const uint32_t column = (run.first_head + head) * key_dim;
  for (uint32_t row = gpu::warp_index(); row < kTileQueries; row += kWarps) {
    const float* from = run.queries.data + uint64_t{first_row + row} * run.queries.stride + column;
    const bool is_there = first_row + row < run.rows;
    for (uint32_t piece = gpu::lane_index(); piece < key_dim / device::kPieceValues; piece += gpu::kWarpThreads) {
      float values[device::kPieceValues];
#pragma unroll
      for (unsigned i = 0; i < device::kPieceValues; ++i)
        values[i] = is_there ? from[piece * device::kPieceValues + i] : 0.0F;
      *reinterpret_cast<uint4*>(tile.at(row, piece)) = device::round_piece(values);
    }
  }
}

/// Attention of a warp's 16 queries.
struct WarpAttention {
  uint32_t queries[kMaxKeyDim / 16][4];
  float values[kMaxValueDim / 8][4] = {};
  float maximum[2] = {device::minus_infinity(), device::minus_infinity()};  // for rows lane / 4 and lane / 4 + 8
  float sum[2] = {};                                                        // over the lane's own columns

  __device__ __forceinline__ void take_queries(const ExpandedRun& run, const Tile& tile) {
    const unsigned lane = gpu::lane_index();
#pragma unroll
    for (unsigned step = 0; step < kMaxKeyDim / 16; ++step) {
      if (step * 16 >= run.nope_dim + run.rope_dim) break;
      gpu::ldmatrix_x4(queries[step], tile.at(gpu::warp_index() * 16 + lane % 16, step * 2 + lane / 16));
    }
  }

  __device__ __forceinline__ void score(const ExpandedRun& run, const Tile& tile,
                                        float (&scores)[kTilePositions / 8][4]) const {
    const unsigned lane = gpu::lane_index();
    const uint32_t row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (unsigned step = 0; step < kMaxKeyDim / 16; ++step) {
      if (step * 16 >= run.nope_dim + run.rope_dim) break;
      // The rotary key follows the value.
      const uint32_t column = step * 16 < run.nope_dim ? step * 16 : run.value_dim + step * 16;
      const uint32_t piece = column / device::kPieceValues + lane / 8 % 2;
#pragma unroll
      for (unsigned positions = 0; positions < kTilePositions / 8; positions += 2) {
        uint32_t b[4];
        gpu::ldmatrix_x4(b, tile.at(row + positions * 8, piece));
        const uint32_t first[2] = {b[0], b[1]};
        const uint32_t second[2] = {b[2], b[3]};
        gpu::mma_m16n8k16(scores[positions], queries[step], first);
        gpu::mma_m16n8k16(scores[positions + 1], queries[step], second);
      }
    }
  }

  /// Turns scores into weights relative to the new maximum, and rescales the earlier sums. `seen`: the first position,
  /// relative to the tile, that the row does not see.
  __device__ __forceinline__ void weigh(const uint32_t (&seen)[2], float scale,
                                        float (&scores)[kTilePositions / 8][4]) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float highest = maximum[half];
#pragma unroll
      for (unsigned i = 0; i < kTilePositions / 4; ++i) {
        const uint32_t position = i / 2 * 8 + gpu::lane_index() % 4 * 2 + i % 2;
        float& score = scores[i / 2][half * 2 + i % 2];
        score = position < seen[half] ? score * scale : device::minus_infinity();
        highest = device::larger(score, highest);
      }
      highest = device::larger(gpu::shuffle_xor(highest, 1), highest);
      highest = device::larger(gpu::shuffle_xor(highest, 2), highest);
      const float factor = device::factor_of(maximum[half], highest);
      maximum[half] = highest;
      float added = 0;
#pragma unroll
      for (unsigned i = 0; i < kTilePositions / 4; ++i) {
        float& score = scores[i / 2][half * 2 + i % 2];
        score = score == device::minus_infinity() ? 0.0F : gpu::exponential(score - highest);
        added += score;
      }
      sum[half] = gpu::fma_rn(sum[half], factor, added);
#pragma unroll
      for (auto& value : values) {
        value[half * 2] *= factor;
        value[half * 2 + 1] *= factor;
      }
    }
  }

  __device__ __forceinline__ void add_values(const ExpandedRun& run, const Tile& tile,
                                             const float (&weights)[kTilePositions / 8][4]) {
    const unsigned lane = gpu::lane_index();
#pragma unroll
    for (unsigned step = 0; step < kTilePositions / 16; ++step) {
      const float(&low)[4] = weights[2 * step];
      const float(&high)[4] = weights[2 * step + 1];
      const uint32_t a[4] = {gpu::floats_to_bf16s(low[0], low[1]), gpu::floats_to_bf16s(low[2], low[3]),
                             gpu::floats_to_bf16s(high[0], high[1]), gpu::floats_to_bf16s(high[2], high[3])};
#pragma unroll
      for (unsigned pair = 0; pair < kMaxValueDim / 16; ++pair) {
        if (pair * 16 >= run.value_dim) break;
        uint32_t b[4];
        gpu::ldmatrix_x4_trans(
            b, tile.at(step * 16 + lane % 16, (run.nope_dim + pair * 16) / device::kPieceValues + lane / 16));
        const uint32_t first[2] = {b[0], b[1]};
        const uint32_t second[2] = {b[2], b[3]};
        gpu::mma_m16n8k16(values[pair * 2], a, first);
        gpu::mma_m16n8k16(values[pair * 2 + 1], a, second);
      }
    }
  }

  __device__ __forceinline__ void store(const ExpandedRun& run, uint32_t head, uint32_t first_row) const {
    const unsigned lane = gpu::lane_index();
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float total = sum[half];
      total += gpu::shuffle_xor(total, 1);
      total += gpu::shuffle_xor(total, 2);
      const uint32_t row = first_row + gpu::warp_index() * 16 + lane / 4 + half * 8;
      if (row >= run.rows) continue;
      float* to = run.out + (uint64_t{row} * run.all_heads + run.first_head + head) * run.value_dim;
#pragma unroll
      for (unsigned i = 0; i < kMaxValueDim / 8; ++i) {
        const uint32_t column = i * 8 + lane % 4 * 2;
        if (column >= run.value_dim) break;
        *reinterpret_cast<float2*>(to + column) =
            make_float2(gpu::divide(values[i][half * 2], total), gpu::divide(values[i][half * 2 + 1], total));
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads) expanded_kernel(ExpandedRun run) {
  Tile tile = {gpu::shared_memory<unsigned char>(), run.row_bytes};
  Tile other = {tile.rows + kTilePositions * run.row_bytes, run.row_bytes};
  // The last rows see the most positions, so they go first.
  const uint32_t first_row = (gpu::grid_blocks().x - 1 - gpu::block_index().x) * kTileQueries;
  const uint32_t head = gpu::block_index().y;
  const uint32_t last_row = first_row + kTileQueries < run.rows ? first_row + kTileQueries : run.rows;
  const uint32_t end = run.first_position + last_row;
  fetch_tile(run, head, 0, end, other);
  load_queries(run, head, first_row, tile);
  gpu::block_barrier();  // the queries are in shared memory
  WarpAttention attention;
  attention.take_queries(run, tile);
  const uint32_t my_row = first_row + gpu::warp_index() * 16 + gpu::lane_index() / 4;
  for (uint32_t position = 0; position < end; position += kTilePositions) {
    gpu::cp_async_wait_group<0>();
    gpu::block_barrier();  // the tile has arrived, and the other one's contents have been used
    const Tile used = tile;
    tile = other;
    other = used;
    if (position + kTilePositions < end) fetch_tile(run, head, position + kTilePositions, end, other);
    float scores[kTilePositions / 8][4] = {};
    attention.score(run, tile, scores);
    uint32_t seen[2];
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const uint32_t row = my_row + half * 8;
      const uint32_t behind = row < run.rows ? run.first_position + row + 1 : 0;
      seen[half] = behind > position ? behind - position : 0;
    }
    attention.weigh(seen, run.scale, scores);
    attention.add_values(run, tile, scores);
  }
  attention.store(run, head, first_row);
}

}  // namespace

bool fits_expanded(const ExpandedShape& shape, const MatrixForm& kv_b, const gpu::Properties& properties) {
  constexpr unsigned kFirstWithBf16 = 8;
  const bool are_multiples = shape.nope_dim % 16 == 0 && shape.rope_dim % 16 == 0 && shape.value_dim % 16 == 0;
  const bool are_small = uint64_t{shape.nope_dim} + shape.rope_dim <= kMaxKeyDim && shape.value_dim <= kMaxValueDim;
  const bool are_whole = kv_b.block_out == 0 || kv_b.block_out >= kv_b.out || shape.head_dim() % kv_b.block_out == 0;
  const uint64_t shared = kStages * kTilePositions * tensor_row_bytes(shape.head_dim() + shape.rope_dim);
  return are_multiples && are_small && shape.nope_dim > 0 && shape.value_dim > 0 && are_whole &&
         !is_packed(kv_b.coding) && fits_tensor_cores(kv_b) && properties.major >= kFirstWithBf16 &&
         shared <= properties.shared_bytes_per_block;
}

void attend_expanded(gpu::Stream& stream, const ExpandedAttendTask& task) {
  const ExpandedShape& shape = task.shape;
  if (shape.rows == 0 || shape.heads == 0) return;
  const ExpandedPlan plan = plan_expanded(shape);
  const ExpandedScratch scratch = lay_out_expanded(task.scratch, shape);
  ExpandedKeysTask keys{.kv_b = task.kv_b,
                        .cache = task.cache,
                        .cache_dtype = task.cache_dtype,
                        .latent_dim = shape.latent_dim,
                        .rope_dim = shape.rope_dim,
                        .head_dim = shape.head_dim(),
                        .positions = shape.positions,
                        .slice = plan.slice,
                        .latents = scratch.latents,
                        .made = scratch.made,
                        .keys = scratch.keys,
                        .ropes = scratch.ropes};
  ExpandedRun run{.queries = task.queries,
                  .out = task.out,
                  .keys = scratch.keys,
                  .ropes = scratch.ropes,
                  .rows = shape.rows,
                  .first_head = 0,
                  .all_heads = shape.heads,
                  .rope_dim = shape.rope_dim,
                  .nope_dim = shape.nope_dim,
                  .value_dim = shape.value_dim,
                  .positions = shape.positions,
                  .first_position = task.first_position,
                  .row_bytes = tensor_row_bytes(shape.head_dim() + shape.rope_dim),
                  .scale = task.scale};
  for (; run.first_head < shape.heads; run.first_head += plan.heads) {
    keys.first_head = run.first_head;
    keys.heads = std::min(plan.heads, shape.heads - run.first_head);
    make_expanded_keys(stream, keys);
    gpu::launch(stream,
                {.grid_x = static_cast<unsigned>(ceil_div(shape.rows, kTileQueries)),
                 .grid_y = keys.heads,
                 .threads = kThreads,
                 .shared_bytes = static_cast<unsigned>(kStages * kTilePositions * run.row_bytes)},
                expanded_kernel, run);
  }
}

}  // namespace dspack::kernels::cuda
