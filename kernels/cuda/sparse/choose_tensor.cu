// The scores of the indexer's choice on tensor cores (mma.m16n8k16, BF16): a block takes 64 positions through 64 heads
// at a time; warp w multiplies all of these heads with positions 16 w ..:
//
//   products [64 heads, 16 positions] = queries . keys, in registers: lane l has heads l / 4 + 8 i, and of every 8
//   positions 2 (l % 4) and the next
//
// Keys are rounded to shared memory once for all rows of the block. Operands are laid out as in attention
// (attention/tensor_keys.cuh). The scale of an FP8 key is applied to its products, so that its codes are exact in BF16.
#include "format/base/check.h"
#include "kernels/cuda/attention/tensor_keys.cuh"
#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/sparse/choose.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kHeadTiles = kScoreHeads / 16;
constexpr unsigned kHeadsOfLane = kScoreHeads / device::kHeadLanes;
constexpr unsigned kPositionsOfWarp = 16;
static_assert(kScorePositions == kScoreThreads / gpu::kWarpThreads * kPositionsOfWarp);

struct TensorScoreShared {
  unsigned char* keys;     // [kScorePositions, row_bytes]
  unsigned char* queries;  // [kScoreHeads, row_bytes]
  uint32_t row_bytes;
};

/// Four values of a row, from column `column` on, a multiple of four.
__device__ __forceinline__ uint2* four_at(unsigned char* rows, uint32_t row, uint32_t row_bytes, uint32_t column) {
  const uint32_t piece = column / device::kPieceValues;
  return reinterpret_cast<uint2*>(rows + device::swizzled(row, row_bytes, piece)) + column / 4 % 2;
}
__device__ __forceinline__ uint2 round_four(const float (&values)[4]) {
  return make_uint2(gpu::floats_to_bf16s(values[0], values[1]), gpu::floats_to_bf16s(values[2], values[3]));
}

/// Keys from position `first` on; zeros from `end` on. kAligned: rows are whole 16-byte pieces.
template <class Stored, bool kAligned>
__device__ __forceinline__ void round_keys(const device::ChooseRun& run, uint32_t first, uint32_t end,
                                           const TensorScoreShared& shared) {
  constexpr unsigned kPiece = kAligned ? Stored::kPer16 : 4;
  constexpr unsigned kAhead = 4;  // loads in flight before the first is used
  const uint32_t dim = run.keys.in;
  const uint32_t pieces = dim / kPiece;
  unsigned shift = 0;  // log2 of pieces per position, rounded up: an item is (position << shift) + piece
  while (1U << shift < pieces)
    ++shift;
  for (uint32_t begin = gpu::thread_index(); begin < kScorePositions << shift; begin += kAhead * kScoreThreads) {
    uint4 bytes[kAhead];
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t item = begin + i * kScoreThreads;
      const uint32_t piece = item & ((1U << shift) - 1);
      const uint64_t at = uint64_t{first + (item >> shift)} * pieces + piece;
      const bool is_there = item >> shift < kScorePositions && piece < pieces && first + (item >> shift) < end;
      bytes[i] = make_uint4(0, 0, 0, 0);
      if constexpr (kAligned) {
        if (is_there) bytes[i] = static_cast<const uint4*>(run.keys.planes[kCodes])[at];
      } else {
        uint32_t bits[4] = {};
#pragma unroll
        for (unsigned j = 0; j < 4; ++j)
          bits[j] = gpu::float_to_bits(is_there ? Stored::decode_one(run.keys.planes[kCodes], at * 4 + j) : 0.0F);
        bytes[i] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t item = begin + i * kScoreThreads;
      const uint32_t piece = item & ((1U << shift) - 1);
      if (item >> shift >= kScorePositions || piece >= pieces) continue;
#pragma unroll
      for (unsigned quarter = 0; quarter < kPiece / 4; ++quarter) {
        float values[4];
        if constexpr (kAligned) {
          Stored::decode(bytes[i], quarter, values);
        } else {
          device::StoredF32::decode(bytes[i], quarter, values);
        }
        *four_at(shared.keys, item >> shift, shared.row_bytes, piece * kPiece + quarter * 4) = round_four(values);
      }
    }
  }
}

/// Rounds the queries of the heads from `head` on; zeros after the last head.
__device__ __forceinline__ void round_queries(const device::ChooseRun& run, uint32_t row, uint32_t head,
                                              const TensorScoreShared& shared) {
  constexpr unsigned kAhead = 4;
  const uint32_t dim = run.keys.in;
  const uint32_t quads = dim / 4;
  unsigned shift = 0;
  while (1U << shift < quads)
    ++shift;
  const float* from = run.queries + (uint64_t{row} * run.heads + head) * dim;
  const bool is_aligned = reinterpret_cast<uint64_t>(run.queries) % 16 == 0;
  for (uint32_t begin = gpu::thread_index(); begin < kScoreHeads << shift; begin += kAhead * kScoreThreads) {
    float4 loaded[kAhead];
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t at = (begin + i * kScoreThreads) >> shift;
      const uint32_t quad = (begin + i * kScoreThreads) & ((1U << shift) - 1);
      const bool is_there = at < kScoreHeads && quad < quads && head + at < run.heads;
      const float* values = is_there ? from + uint64_t{at} * dim + quad * 4 : run.queries;
      loaded[i] = make_float4(0, 0, 0, 0);
      if (is_there && is_aligned) loaded[i] = *reinterpret_cast<const float4*>(values);
      if (is_there && !is_aligned) loaded[i] = make_float4(values[0], values[1], values[2], values[3]);
    }
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t at = (begin + i * kScoreThreads) >> shift;
      const uint32_t quad = (begin + i * kScoreThreads) & ((1U << shift) - 1);
      if (at >= kScoreHeads || quad >= quads) continue;
      const float values[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
      *four_at(shared.queries, at, shared.row_bytes, quad * 4) = round_four(values);
    }
  }
}

/// Multiplies all heads in shared memory with this warp's positions.
__device__ __forceinline__ void multiply(const TensorScoreShared& shared, uint32_t steps,
                                         float (&products)[kHeadsOfLane][device::kKeysOfThread]) {
  const unsigned lane = gpu::lane_index();
  const uint32_t my_key = gpu::warp_index() * kPositionsOfWarp + lane / 16 * 8 + lane % 8;
  float tiles[kHeadTiles][2][4] = {};
#pragma unroll 2
  for (uint32_t step = 0; step < steps; ++step) {
    uint32_t b[4];
    gpu::ldmatrix_x4(b, shared.keys + device::swizzled(my_key, shared.row_bytes, step * 2 + lane / 8 % 2));
    const uint32_t first[2] = {b[0], b[1]};
    const uint32_t second[2] = {b[2], b[3]};
#pragma unroll
    for (unsigned tile = 0; tile < kHeadTiles; ++tile) {
      uint32_t a[4];
      gpu::ldmatrix_x4(
          a, shared.queries + device::swizzled(tile * 16 + lane % 16, shared.row_bytes, step * 2 + lane / 16));
      gpu::mma_m16n8k16(tiles[tile][0], a, first);
      gpu::mma_m16n8k16(tiles[tile][1], a, second);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kHeadsOfLane; ++i) {
#pragma unroll
    for (unsigned j = 0; j < device::kKeysOfThread; ++j)
      products[i][j] = tiles[i / 2][j / 2][i % 2 * 2 + j % 2];
  }
}

template <class Stored, bool kAligned>
__global__ void __launch_bounds__(kScoreThreads) tensor_scores_kernel(device::ChooseRun run) {
  TensorScoreShared shared;
  shared.row_bytes = run.tensor_row_bytes;
  shared.keys = gpu::shared_memory<unsigned char>();
  shared.queries = shared.keys + kScorePositions * shared.row_bytes;
  uint32_t row_of_queries = run.rows;  // the row whose queries are in shared memory, which serve all tiles of the block
  device::for_each_tile(run, [&](uint32_t first, uint32_t end, uint32_t first_row, uint32_t end_row) {
    uint32_t mine[device::kKeysOfThread];
#pragma unroll
    for (unsigned j = 0; j < device::kKeysOfThread; ++j)
      mine[j] = first + gpu::warp_index() * kPositionsOfWarp + j / 2 * 8 + gpu::lane_index() % 4 * 2 + j % 2;
    gpu::block_barrier();  // the previous keys have been used
    round_keys<Stored, kAligned>(run, first, end, shared);
    float scales[device::kKeysOfThread];
    device::load_scales(run, mine, end, scales);
    for (uint32_t row = first_row; row < end_row; ++row) {
      float scores[device::kKeysOfThread] = {};
      for (uint32_t head = 0; head < run.heads; head += kScoreHeads) {
        if (row != row_of_queries || run.heads > kScoreHeads) {
          gpu::block_barrier();  // the previous queries have been used
          round_queries(run, row, head, shared);
          row_of_queries = row;
        }
        gpu::block_barrier();  // queries and keys are stored
        float products[kHeadsOfLane][device::kKeysOfThread];
        multiply(shared, run.keys.in / 16, products);
        device::add_heads(run, row, head, products, scales, scores);
      }
      device::store_orders(run, row, mine, scores);
    }
  });
}

template <class Stored>
void launch_tensor_scores(gpu::Stream& stream, const gpu::LaunchShape& shape, const device::ChooseRun& run) {
  const bool is_aligned =
      run.keys.in % Stored::kPer16 == 0 && reinterpret_cast<uint64_t>(run.keys.planes[kCodes]) % 16 == 0;
  if (is_aligned) return gpu::launch(stream, shape, tensor_scores_kernel<Stored, true>, run);
  gpu::launch(stream, shape, tensor_scores_kernel<Stored, false>, run);
}

}  // namespace

void run_scores_tensor(gpu::Stream& stream, const ChooseTask& task, const device::ChooseRun& run) {
  DSPACK_CHECK(task.keys.in % 16 == 0 && task.keys.in <= kScoreKeyPanel, "keys that do not fit the tensor cores");
  const gpu::LaunchShape shape = choose_scores_launch(task, run.rows);
  switch (run.keys.coding) {  // the checks admit only these
    case Coding::bf16: return launch_tensor_scores<device::StoredBf16>(stream, shape, run);
    case Coding::f16: return launch_tensor_scores<device::StoredF16>(stream, shape, run);
    case Coding::f8_e4m3: return launch_tensor_scores<device::StoredF8>(stream, shape, run);
    default: return launch_tensor_scores<device::StoredF32>(stream, shape, run);
  }
}

}  // namespace dspack::kernels::cuda
