// The scores of the indexer's choice, in FP32. For each 64 heads (32 if there are no more) and 64 positions a thread
// multiplies 8 (4) heads with 4 positions:
//
//   keys     [64, dim] decoded, in shared memory for all rows and heads of the block
//   queries  [64, 16], one panel at a time, while the next one is copied
//   warp w   positions 16 w ..: lane l has heads l / 4, l / 4 + 8, .. and positions l % 4, l % 4 + 4, ..
//
// 128 fused operations per 12 reads of 16 bytes keep the FP32 units busy, which bound the kernel: a position of V3.2
// takes 8,192 operations for 256 bytes of BF16. Keys wider than a panel of 128 pass panel by panel for every group of
// heads.
#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/sparse/choose.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kScoreWarps = kScoreThreads / gpu::kWarpThreads;
using device::kHeadLanes;
using device::kKeyLanes;
using device::kKeysOfThread;
constexpr unsigned kPanelQuads = kScorePanel / 4;
static_assert(kScorePositions == kScoreWarps * kKeyLanes * kKeysOfThread);

struct ScoreShared {
  float* keys;     // [kScorePositions, key_stride]
  float* queries;  // [heads of a pass, kScoreQueryStride]
  uint32_t key_stride;
};

struct IndexPanel {
  uint32_t first;
  uint32_t count;
};

__device__ __forceinline__ IndexPanel panel_at(uint32_t first, uint32_t dim) {
  return {first, dim - first < kScoreKeyPanel ? dim - first : kScoreKeyPanel};
}

/// Loads columns of the keys from position `first` on; zeros from `end` on, and up to whole quads. kAligned: rows are
/// whole 16-byte pieces.
template <class Stored, bool kAligned>
__device__ __forceinline__ void load_index_keys(const device::ChooseRun& run, uint32_t first, uint32_t end,
                                                IndexPanel panel, const ScoreShared& shared) {
  if constexpr (kAligned) {
    constexpr unsigned kAhead = 4;  // loads in flight before the first is used
    const uint32_t pieces = panel.count / Stored::kPer16;
    unsigned shift = 0;  // log2 of pieces per position, rounded up: an item is (position << shift) + piece
    while (1U << shift < pieces)
      ++shift;
    const auto* cache = static_cast<const uint8_t*>(run.keys.planes[kCodes]);
    for (uint32_t begin = gpu::thread_index(); begin < kScorePositions << shift; begin += kAhead * kScoreThreads) {
      uint4 bytes[kAhead];
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const uint32_t item = begin + i * kScoreThreads;
        const uint32_t position = first + (item >> shift);
        const uint32_t piece = item & ((1U << shift) - 1);
        const bool is_there = item >> shift < kScorePositions && piece < pieces && position < end;
        const uint64_t at = uint64_t{position} * (run.keys.in / Stored::kPer16) + panel.first / Stored::kPer16 + piece;
        bytes[i] = is_there ? *reinterpret_cast<const uint4*>(cache + at * 16) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const uint32_t item = begin + i * kScoreThreads;
        const uint32_t piece = item & ((1U << shift) - 1);
        if (item >> shift >= kScorePositions || piece >= pieces) continue;
        float* to = shared.keys + (item >> shift) * shared.key_stride + piece * Stored::kPer16;
#pragma unroll
        for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
          float values[4];
          Stored::decode(bytes[i], quarter, values);
          reinterpret_cast<float4*>(to)[quarter] = make_float4(values[0], values[1], values[2], values[3]);
        }
      }
    }
  } else {
    const uint32_t padded = (panel.count + 3) / 4 * 4;
    for (uint32_t row = gpu::warp_index(); row < kScorePositions; row += kScoreWarps) {
      const bool is_there = first + row < end;
      const uint64_t at = uint64_t{first + row} * run.keys.in + panel.first;
      for (uint32_t i = gpu::lane_index(); i < padded; i += gpu::kWarpThreads) {
        shared.keys[row * shared.key_stride + i] =
            is_there && i < panel.count ? Stored::decode_one(run.keys.planes[kCodes], at + i) : 0.0F;
      }
    }
  }
}

/// A panel of queries: columns [column, column + kScorePanel) of the heads of one pass.
struct QueryPanel {
  uint32_t row;
  uint32_t head;
  uint32_t column;
  /// Moves on to the next columns, then heads, then row.
  __device__ __forceinline__ void advance(const device::ChooseRun& run, uint32_t heads_of_pass) {
    column += kScorePanel;
    if (column < run.keys.in) return;
    column = 0;
    head += heads_of_pass;
    if (head < run.heads) return;
    head = 0;
    ++row;
  }
};

/// Starts copying a panel of kHeads heads to shared memory; zeros after the last head and column.
template <unsigned kHeads>
__device__ __forceinline__ void fetch_queries(const device::ChooseRun& run, const QueryPanel& panel, float* to) {
  constexpr unsigned kHeadsAtOnce = kScoreThreads / kPanelQuads;
  static_assert(kHeads % kHeadsAtOnce == 0);
  const uint32_t dim = run.keys.in;
  const uint32_t my_head = gpu::thread_index() / kPanelQuads;
  const uint32_t column = panel.column + gpu::thread_index() % kPanelQuads * 4;
  const float* from = run.queries + (uint64_t{panel.row} * run.heads + panel.head + my_head) * dim + column;
  float* quad = to + my_head * kScoreQueryStride + gpu::thread_index() % kPanelQuads * 4;
  const uint32_t left = run.heads - panel.head;
  if (dim % 4 == 0 && reinterpret_cast<uint64_t>(run.queries) % 16 == 0) {
#pragma unroll
    for (unsigned i = 0; i < kHeads; i += kHeadsAtOnce) {
      const bool is_there = my_head + i < left && column < dim;
      gpu::cp_async(quad + i * kScoreQueryStride, is_there ? from + uint64_t{i} * dim : run.queries, is_there);
    }
  } else {
    for (unsigned i = 0; i < kHeads; i += kHeadsAtOnce) {
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const bool is_there = my_head + i < left && column + j < dim;
        quad[i * kScoreQueryStride + j] = is_there ? from[uint64_t{i} * dim + j] : 0.0F;
      }
    }
  }
  gpu::cp_async_commit_group();
}

/// Adds a panel's part to the products of this thread's heads and positions; `keys` points at the thread's first
/// position.
template <unsigned kHeads>
__device__ __forceinline__ void add_products(const float* queries, const float* keys, uint32_t key_stride,
                                             uint32_t quads, float (&products)[kHeads][kKeysOfThread]) {
#pragma unroll 2
  for (uint32_t quad = 0; quad < quads; ++quad) {
    float4 key[kKeysOfThread];
#pragma unroll
    for (unsigned j = 0; j < kKeysOfThread; ++j)
      key[j] = *reinterpret_cast<const float4*>(keys + j * kKeyLanes * key_stride + quad * 4);
#pragma unroll
    for (unsigned i = 0; i < kHeads; ++i) {
      const float4 query = *reinterpret_cast<const float4*>(queries + i * kHeadLanes * kScoreQueryStride + quad * 4);
#pragma unroll
      for (unsigned j = 0; j < kKeysOfThread; ++j) {
        float& product = products[i][j];
        product = gpu::fma_rn(query.x, key[j].x, product);
        product = gpu::fma_rn(query.y, key[j].y, product);
        product = gpu::fma_rn(query.z, key[j].z, product);
        product = gpu::fma_rn(query.w, key[j].w, product);
      }
    }
  }
}

/// The scores of rows [first_row, end_row), which all see position `first`, for a tile; no row sees positions from
/// `end` on. The next panel of queries is copied while one is used.
template <class Stored, bool kAligned, unsigned kHeads>
__device__ __forceinline__ void score_tile(const device::ChooseRun& run, uint32_t first, uint32_t end,
                                           uint32_t first_row, uint32_t end_row, const ScoreShared& shared) {
  constexpr uint32_t kHeadsOfPass = kHeads * kHeadLanes;
  const uint32_t dim = run.keys.in;
  const bool is_whole = dim <= kScoreKeyPanel;
  const unsigned my_head = gpu::lane_index() / kKeyLanes;
  const unsigned my_key = gpu::warp_index() * (kKeyLanes * kKeysOfThread) + gpu::lane_index() % kKeyLanes;
  QueryPanel panel = {first_row, 0, 0};
  float* queries = shared.queries;
  float* other = queries + kHeadsOfPass * kScoreQueryStride;
  gpu::block_barrier();  // the previous keys and queries have been used
  fetch_queries<kHeadsOfPass>(run, panel, queries);
  if (is_whole) load_index_keys<Stored, kAligned>(run, first, end, panel_at(0, dim), shared);
  uint32_t mine[kKeysOfThread];
#pragma unroll
  for (unsigned j = 0; j < kKeysOfThread; ++j)
    mine[j] = first + my_key + j * kKeyLanes;
  float scales[kKeysOfThread];
  device::load_scales(run, mine, end, scales);
  float scores[kKeysOfThread] = {};
  while (panel.row < end_row) {
    float products[kHeads][kKeysOfThread] = {};
    const QueryPanel pass = panel;
    do {
      const uint32_t column = panel.column;
      gpu::cp_async_wait_group<0>();
      gpu::block_barrier();  // the queries have arrived, and the previous ones have been used
      const uint32_t in_panel = column % kScoreKeyPanel;
      if (!is_whole && in_panel == 0) {
        load_index_keys<Stored, kAligned>(run, first, end, panel_at(column, dim), shared);
        gpu::block_barrier();  // the keys are stored
      }
      panel.advance(run, kHeadsOfPass);
      if (panel.row < end_row) fetch_queries<kHeadsOfPass>(run, panel, other);
      const uint32_t left = (dim - column + 3) / 4;
      add_products<kHeads>(queries + my_head * kScoreQueryStride, shared.keys + my_key * shared.key_stride + in_panel,
                           shared.key_stride, left < kPanelQuads ? left : kPanelQuads, products);
      float* used = queries;
      queries = other;
      other = used;
    } while (panel.column > 0);
    device::add_heads(run, pass.row, pass.head, products, scales, scores);
    if (panel.row > pass.row) device::store_orders(run, pass.row, mine, scores);
  }
}

template <class Stored, bool kAligned, unsigned kHeads>
__global__ void __launch_bounds__(kScoreThreads, 4) scores_kernel(device::ChooseRun run) {
  ScoreShared shared;
  shared.key_stride = run.key_stride;
  shared.keys = gpu::shared_memory<float>();
  shared.queries = shared.keys + kScorePositions * shared.key_stride;
  device::for_each_tile(run, [&](uint32_t first, uint32_t end, uint32_t first_row, uint32_t end_row) {
    score_tile<Stored, kAligned, kHeads>(run, first, end, first_row, end_row, shared);
  });
}

template <class Stored, bool kAligned>
void launch_scores(gpu::Stream& stream, const gpu::LaunchShape& shape, const device::ChooseRun& run) {
  constexpr unsigned kMany = kScoreHeads / kHeadLanes;
  if (run.heads > kScoreHeads / 2) return gpu::launch(stream, shape, scores_kernel<Stored, kAligned, kMany>, run);
  gpu::launch(stream, shape, scores_kernel<Stored, kAligned, kMany / 2>, run);
}

template <class Stored>
void run_stored_scores(gpu::Stream& stream, const gpu::LaunchShape& shape, const device::ChooseRun& run) {
  const bool is_aligned =
      run.keys.in % Stored::kPer16 == 0 && reinterpret_cast<uint64_t>(run.keys.planes[kCodes]) % 16 == 0;
  if (is_aligned) return launch_scores<Stored, true>(stream, shape, run);
  launch_scores<Stored, false>(stream, shape, run);
}

}  // namespace

void run_scores_exact(gpu::Stream& stream, const ChooseTask& task, const device::ChooseRun& run) {
  const gpu::LaunchShape shape = choose_scores_launch(task, run.rows);
  switch (run.keys.coding) {  // the checks admit only these
    case Coding::bf16: return run_stored_scores<device::StoredBf16>(stream, shape, run);
    case Coding::f16: return run_stored_scores<device::StoredF16>(stream, shape, run);
    case Coding::f8_e4m3: return run_stored_scores<device::StoredF8>(stream, shape, run);
    default: return run_stored_scores<device::StoredF32>(stream, shape, run);
  }
}

}  // namespace dspack::kernels::cuda
