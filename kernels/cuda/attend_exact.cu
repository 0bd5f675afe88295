// The first kernel of exact attention: a block takes 16 queries through the positions of one split, 16 at a time, all
// in FP32. Keys lie decoded in shared memory, once for all queries; sums of values stay in registers.
//
//   scores   warp w multiplies the w-th eighth of the columns: a thread 4 queries (l, l + 4, ..) with 2 positions
//   softmax  a thread one score: adds the eight parts in their order; 16 lanes of a query find maximum and sum
//   values   a thread 4 columns of 8 queries, position by position
//
// Keys wider than a panel (V3's fit one) pass panel by panel, and the columns of the values are then loaded again;
// values of more than 512 columns are spread over blocks, each of which repeats the scores.
#include "kernels/cuda/device/attend.cuh"
#include "kernels/cuda/device/decode.cuh"

namespace dspack::kernels::cuda::device {

// How a warp brings columns of one key to shared memory as FP32, for each way in which a cache is stored. All of one
// form: load(run, position, is_there, columns, to); zeros where no key is there, and after the last column.

/// Columns of a key, or query, that are in shared memory. The first is a multiple of 16.
struct KeyColumns {
  uint32_t first;
  uint32_t count;
  [[nodiscard]] __device__ __forceinline__ uint32_t padded() const { return (count + 3) / 4 * 4; }
};

/// 16 bytes, decoded.
template <class Stored>
__device__ __forceinline__ void store_decoded(const uint4& bytes, float* to) {
#pragma unroll
  for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
    float values[4];
    Stored::decode(bytes, quarter, values);
    reinterpret_cast<float4*>(to)[quarter] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

/// FP32, BF16 or F16, row behind row. kAligned: every row begins at a multiple of 16 bytes; what fills the last 16 of
/// the columns are other columns of the row.
template <class Stored, bool kAligned>
struct StoredKeys {
  static __device__ __forceinline__ void load(const AttendRun& run, uint32_t position, bool is_there,
                                              KeyColumns columns, float* to) {
    const uint64_t at = uint64_t{position} * run.key_dim + columns.first;
    if constexpr (kAligned) {
      const auto* from = static_cast<const uint8_t*>(run.cache) + at * (16 / Stored::kPer16);
      for (uint32_t i = gpu::lane_index() * Stored::kPer16; i < columns.count;
           i += gpu::kWarpThreads * Stored::kPer16) {
        const uint4 bytes = is_there ? *reinterpret_cast<const uint4*>(from + uint64_t{i} * (16 / Stored::kPer16))
                                     : make_uint4(0, 0, 0, 0);
        store_decoded<Stored>(bytes, to + i);
      }
    } else {
      for (uint32_t i = gpu::lane_index(); i < columns.padded(); i += gpu::kWarpThreads)
        to[i] = is_there && i < columns.count ? Stored::decode_one(run.cache, at + i) : 0.0F;
    }
  }
};

/// FP8 (kernels/latent_rows.h). kWhole: latent and rotary key are each whole pieces of 16 bytes.
template <bool kWhole>
struct Fp8Keys {
  static __device__ __forceinline__ void load(const AttendRun& run, uint32_t position, bool is_there,
                                              KeyColumns columns, float* to) {
    const uint8_t* row = static_cast<const uint8_t*>(run.cache) + position * run.fp8_row.bytes;
    if constexpr (kWhole) {
      load_latent(run, row, is_there, columns, to);
      load_rope(run, row, is_there, columns, to);
    } else {
      for (uint32_t i = gpu::lane_index(); i < columns.padded(); i += gpu::kWarpThreads) {
        const bool is_value = is_there && i < columns.count;
        to[i] = is_value ? fp8_row_value(row, run.fp8_row, run.latent_dim, columns.first + i) : 0.0F;
      }
    }
  }

 private:
  static __device__ __forceinline__ void load_latent(const AttendRun& run, const uint8_t* row, bool is_there,
                                                     KeyColumns columns, float* to) {
    const uint32_t behind = columns.first + columns.count;
    const uint32_t end = behind < run.latent_dim ? behind : run.latent_dim;
    for (uint32_t column = columns.first + gpu::lane_index() * StoredF8::kPer16; column < end;
         column += gpu::kWarpThreads * StoredF8::kPer16) {
      const uint4 bytes = is_there ? *reinterpret_cast<const uint4*>(row + column) : make_uint4(0, 0, 0, 0);
      const float scale = is_there ? fp8_row_scale(row, run.fp8_row, column) : 0.0F;
#pragma unroll
      for (unsigned quarter = 0; quarter < StoredF8::kQuarters; ++quarter) {
        float values[4];
        StoredF8::decode(bytes, quarter, values);
        reinterpret_cast<float4*>(to + (column - columns.first))[quarter] =
            make_float4(values[0] * scale, values[1] * scale, values[2] * scale, values[3] * scale);
      }
    }
  }
  static __device__ __forceinline__ void load_rope(const AttendRun& run, const uint8_t* row, bool is_there,
                                                   KeyColumns columns, float* to) {
    const uint32_t first = columns.first > run.latent_dim ? columns.first : run.latent_dim;
    for (uint32_t column = first + gpu::lane_index() * StoredBf16::kPer16; column < columns.first + columns.count;
         column += gpu::kWarpThreads * StoredBf16::kPer16) {
      const auto* from =
          reinterpret_cast<const uint4*>(row + run.fp8_row.rope_at) + (column - run.latent_dim) / StoredBf16::kPer16;
      store_decoded<StoredBf16>(is_there ? *from : make_uint4(0, 0, 0, 0), to + (column - columns.first));
    }
  }
};

}  // namespace dspack::kernels::cuda::device

namespace dspack::kernels::cuda {
namespace {

constexpr uint32_t kQueries = kExactTile.queries;
constexpr uint32_t kPositions = kExactTile.positions;
constexpr uint32_t kPanel = kExactTile.panel;
constexpr uint32_t kColumns = kExactTile.columns;
constexpr unsigned kWarps = kExactTile.threads / gpu::kWarpThreads;
constexpr unsigned kScores = kQueries * kPositions;
constexpr unsigned kQueriesOfThread = 4;    // scores
constexpr unsigned kPositionsOfThread = 2;  // scores
constexpr unsigned kQueriesOfHalf = 8;      // values
static_assert(kScores == kExactTile.threads);
static_assert(gpu::kWarpThreads == kQueries / kQueriesOfThread * (kPositions / kPositionsOfThread));
static_assert(kExactTile.threads == kQueries / kQueriesOfHalf * (kColumns / 4));

struct Shared {
  float* keys;     // [kPositions, stride]
  float* queries;  // [kQueries, stride]
  float* scores;   // [kWarps, kQueries, kPositions]; the first part becomes the weights
  float* factors;  // [kQueries]
  uint32_t stride;
};

__device__ __forceinline__ Shared shared_of(const device::AttendRun& run) {
  Shared shared;
  shared.stride = run.key_stride;
  shared.keys = gpu::shared_memory<float>();
  shared.queries = shared.keys + kPositions * shared.stride;
  shared.scores = shared.queries + kQueries * shared.stride;
  shared.factors = shared.scores + kWarps * kScores;
  return shared;
}

/// Zeros after the last column and the last query.
__device__ __forceinline__ void load_queries(const device::AttendRun& run, const device::BlockQueries& queries,
                                             device::KeyColumns columns, const Shared& shared) {
  for (uint32_t row = gpu::warp_index(); row < kQueries; row += kWarps) {
    const uint32_t query = queries.first + row;
    for (uint32_t i = gpu::lane_index(); i < columns.padded(); i += gpu::kWarpThreads) {
      const bool is_there = i < columns.count && query < queries.end;
      shared.queries[row * shared.stride + i] = is_there ? device::query_value(run, query, columns.first + i) : 0.0F;
    }
  }
}

/// The columns of the keys from `first_position` on; zeros from `end` on and after the last column.
template <class Keys>
__device__ __forceinline__ void load_keys(const device::AttendRun& run, const device::PositionMap& map,
                                          uint32_t first_position, uint32_t end, device::KeyColumns columns,
                                          const Shared& shared) {
  for (uint32_t row = gpu::warp_index(); row < kPositions; row += kWarps) {
    const bool is_there = first_position + row < end;
    const uint32_t position = is_there ? map.at(first_position + row) : 0;
    Keys::load(run, position, is_there, columns, shared.keys + row * shared.stride);
  }
}

/// Adds this warp's slice of the columns to the scores of this thread's queries and positions.
__device__ __forceinline__ void add_scores(const Shared& shared, uint32_t quads,
                                           float (&scores)[kQueriesOfThread][kPositionsOfThread]) {
  constexpr unsigned kLanesAcross = kPositions / kPositionsOfThread;
  const float* queries = shared.queries + gpu::lane_index() / kLanesAcross * shared.stride;
  const float* keys = shared.keys + gpu::lane_index() % kLanesAcross * shared.stride;
  const uint32_t slice = (quads + kWarps - 1) / kWarps;
  const uint32_t first = gpu::warp_index() * slice;
  const uint32_t last = first + slice < quads ? first + slice : quads;
  for (uint32_t quad = first; quad < last; ++quad) {
    float4 key[kPositionsOfThread];
#pragma unroll
    for (unsigned j = 0; j < kPositionsOfThread; ++j)
      key[j] = *reinterpret_cast<const float4*>(keys + j * kLanesAcross * shared.stride + quad * 4);
#pragma unroll
    for (unsigned i = 0; i < kQueriesOfThread; ++i) {
      const float4 query =
          *reinterpret_cast<const float4*>(queries + i * (kQueries / kQueriesOfThread) * shared.stride + quad * 4);
#pragma unroll
      for (unsigned j = 0; j < kPositionsOfThread; ++j) {
        float& score = scores[i][j];
        score = gpu::fused_multiply_add(query.x, key[j].x, score);
        score = gpu::fused_multiply_add(query.y, key[j].y, score);
        score = gpu::fused_multiply_add(query.z, key[j].z, score);
        score = gpu::fused_multiply_add(query.w, key[j].w, score);
      }
    }
  }
}

__device__ __forceinline__ void store_scores(const Shared& shared,
                                             const float (&scores)[kQueriesOfThread][kPositionsOfThread]) {
  constexpr unsigned kLanesAcross = kPositions / kPositionsOfThread;
  float* part = shared.scores + gpu::warp_index() * kScores;
#pragma unroll
  for (unsigned i = 0; i < kQueriesOfThread; ++i) {
#pragma unroll
    for (unsigned j = 0; j < kPositionsOfThread; ++j) {
      const unsigned query = gpu::lane_index() / kLanesAcross + i * (kQueries / kQueriesOfThread);
      part[query * kPositions + gpu::lane_index() % kLanesAcross + j * kLanesAcross] = scores[i][j];
    }
  }
}

/// What a query has so far; the same in its 16 lanes.
struct Softmax {
  float maximum;
  float sum;
};

/// Turns this thread's score into a weight relative to the maximum so far.
__device__ __forceinline__ void weigh(const Shared& shared, bool is_seen, float scale, Softmax& softmax) {
  const unsigned thread = gpu::thread_index();
  float score = 0;
#pragma unroll
  for (unsigned part = 0; part < kWarps; ++part)
    score += shared.scores[part * kScores + thread];
  score *= scale;
  float maximum = is_seen ? score : device::minus_infinity();
#pragma unroll
  for (unsigned apart = kPositions / 2; apart > 0; apart /= 2)
    maximum = device::larger(gpu::shuffle_xor(maximum, apart), maximum);
  maximum = device::larger(maximum, softmax.maximum);
  const float weight = is_seen ? gpu::exponential(score - maximum) : 0.0F;
  float sum = weight;
#pragma unroll
  for (unsigned apart = kPositions / 2; apart > 0; apart /= 2)
    sum += gpu::shuffle_xor(sum, apart);
  const float factor = device::factor_of(softmax.maximum, maximum);
  softmax.sum = gpu::fused_multiply_add(softmax.sum, factor, sum);
  softmax.maximum = maximum;
  shared.scores[thread] = weight;  // nobody else reads this place of any part
  if (thread % kPositions == 0) shared.factors[thread / kPositions] = factor;
}

/// values = values * factor + weights . keys for this thread's columns, from `at` in shared memory on.
__device__ __forceinline__ void add_values(const Shared& shared, uint32_t at, float4 (&values)[kQueriesOfHalf]) {
  const unsigned first_query = gpu::thread_index() / (kColumns / 4) * kQueriesOfHalf;
#pragma unroll
  for (unsigned i = 0; i < kQueriesOfHalf; ++i) {
    const float factor = shared.factors[first_query + i];
    values[i] = make_float4(values[i].x * factor, values[i].y * factor, values[i].z * factor, values[i].w * factor);
  }
  for (unsigned position = 0; position < kPositions; position += 4) {
    float4 keys[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
      keys[j] = *reinterpret_cast<const float4*>(shared.keys + (position + j) * shared.stride + at);
#pragma unroll
    for (unsigned i = 0; i < kQueriesOfHalf; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(shared.scores + (first_query + i) * kPositions + position);
      const float weights[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        values[i].x = gpu::fused_multiply_add(weights[j], keys[j].x, values[i].x);
        values[i].y = gpu::fused_multiply_add(weights[j], keys[j].y, values[i].y);
        values[i].z = gpu::fused_multiply_add(weights[j], keys[j].z, values[i].z);
        values[i].w = gpu::fused_multiply_add(weights[j], keys[j].w, values[i].w);
      }
    }
  }
}

__device__ __forceinline__ void store_split(const device::AttendRun& run, const device::BlockQueries& queries,
                                            uint32_t split, uint32_t first_column,
                                            const float4 (&values)[kQueriesOfHalf]) {
  const unsigned half = gpu::thread_index() / (kColumns / 4);
  const uint32_t column = first_column + gpu::thread_index() % (kColumns / 4) * 4;
  if (column >= run.latent_dim) return;
#pragma unroll
  for (unsigned i = 0; i < kQueriesOfHalf; ++i) {
    const uint32_t query = queries.first + half * kQueriesOfHalf + i;
    if (query >= queries.end) return;
    float* to = run.values + device::slot_of(run, query, split) * run.value_stride + column;
    *reinterpret_cast<float4*>(to) = values[i];
  }
}

template <class Keys>
__global__ void __launch_bounds__(kExactTile.threads, 2) exact_kernel(device::AttendRun run) {
  gpu::let_next_begin();
  gpu::wait_for_previous();
  const device::BlockQueries queries = device::queries_of_block(run, gpu::block_index().x, kQueries);
  const uint32_t split = gpu::block_index().y;
  const uint32_t first_column = gpu::block_index().z * kColumns;
  if (queries.first >= queries.end) return;
  const device::BlockPositions block = device::positions_of_block(run, queries, kQueries, split);
  if (block.end == 0) return;
  const device::PositionMap map(run, queries.first);
  const uint32_t my_query = queries.first + gpu::thread_index() / kPositions;
  const device::PositionRange mine = device::range_of_query(run, queries, my_query, split);
  const Shared shared = shared_of(run);
  const uint32_t columns = run.latent_dim - first_column < kColumns ? run.latent_dim - first_column : kColumns;
  const bool is_whole = run.key_dim <= kPanel;
  const uint32_t quad = gpu::thread_index() % (kColumns / 4);
  Softmax softmax = {device::minus_infinity(), 0};
  float4 values[kQueriesOfHalf] = {};
  if (is_whole) load_queries(run, queries, {0, run.key_dim}, shared);
  for (uint32_t position = block.begin; position < block.end; position = block.behind(position, kPositions)) {
    float scores[kQueriesOfThread][kPositionsOfThread] = {};
    for (uint32_t first = 0; first < run.key_dim; first += kPanel) {
      const device::KeyColumns panel = {first, run.key_dim - first < kPanel ? run.key_dim - first : kPanel};
      gpu::block_barrier();  // the keys before have been used
      if (!is_whole) load_queries(run, queries, panel, shared);
      load_keys<Keys>(run, map, position, block.end, panel, shared);
      gpu::block_barrier();  // keys and queries are there
      add_scores(shared, panel.padded() / 4, scores);
    }
    store_scores(shared, scores);
    gpu::block_barrier();  // the scores of all parts are there
    const uint32_t my_position = position + gpu::thread_index() % kPositions;
    weigh(shared, mine.holds(my_position), run.scale, softmax);
    if (!is_whole) load_keys<Keys>(run, map, position, block.end, {first_column, columns}, shared);
    gpu::block_barrier();  // weights, factors and values are there
    if (quad * 4 < columns) add_values(shared, (is_whole ? first_column : 0) + quad * 4, values);
  }
  store_split(run, queries, split, first_column, values);
  const bool is_writer = gpu::thread_index() % kPositions == 0 && gpu::block_index().z == 0;
  if (is_writer && my_query < queries.end) {
    float* stats = run.stats + device::slot_of(run, my_query, split) * kSplitStats;
    stats[0] = softmax.maximum;
    stats[1] = softmax.sum;
  }
}

template <class Keys>
void run_exact(gpu::Stream& stream, const MlaAttendTask& task) {
  for_each_run(stream, task, AttendChoice::exact, [&](const device::AttendRun& run, const gpu::LaunchShape& shape) {
    gpu::launch_overlapping(stream, shape, exact_kernel<Keys>, run);
  });
}

template <class Stored>
void run_stored(gpu::Stream& stream, const MlaAttendTask& task) {
  const uint64_t row_bytes = uint64_t{task.latent_dim + task.rope_dim} * (16 / Stored::kPer16);
  const bool is_aligned = reinterpret_cast<uint64_t>(task.cache) % 16 == 0 && row_bytes % 16 == 0;
  if (is_aligned) return run_exact<device::StoredKeys<Stored, true>>(stream, task);
  run_exact<device::StoredKeys<Stored, false>>(stream, task);
}

void run_fp8(gpu::Stream& stream, const MlaAttendTask& task) {
  if (task.latent_dim % 16 == 0 && task.rope_dim % 8 == 0) return run_exact<device::Fp8Keys<true>>(stream, task);
  run_exact<device::Fp8Keys<false>>(stream, task);
}

}  // namespace

void attend_exact(gpu::Stream& stream, const MlaAttendTask& task) {
  // The checks admit these types only.
  if (task.cache_dtype == Dtype::bf16) return run_stored<device::StoredBf16>(stream, task);
  if (task.cache_dtype == Dtype::f16) return run_stored<device::StoredF16>(stream, task);
  if (task.cache_dtype == Dtype::f8_e4m3) return run_fp8(stream, task);
  run_stored<device::StoredF32>(stream, task);
}

}  // namespace dspack::kernels::cuda
