// The first kernel of exact attention: a block takes 16 queries through the positions of one split, 16 at a time, all
// in FP32. Decoded keys are in shared memory, once for all queries; sums of values stay in registers.
//
//   keys     half a warp per key: fetched into registers a tile ahead, decoded to shared memory when used
//   scores   half a warp per sixteenth of the columns: a thread has queries l, l + 4, .. and positions l, l + 4, ..
//   softmax  a thread per score: adds the eight warps' parts in order; 16 lanes of a query find maximum and sum
//   values   a thread has 4 columns of 8 queries, position by position
//
// Keys wider than a panel (V3's fit one) and unaligned keys are read value by value: they pass panel by panel, and the
// columns of the values are loaded again afterwards. Values of more than 512 columns are spread over blocks, each of
// which repeats the scores.
#include "kernels/cuda/attention/attend.cuh"
#include "kernels/cuda/attention/exact_keys.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr uint32_t kQueries = kExactTile.queries;
constexpr uint32_t kPositions = kExactTile.positions;
constexpr uint32_t kPanel = kExactTile.panel;
constexpr uint32_t kColumns = kExactTile.columns;
constexpr unsigned kWarps = kExactTile.threads / gpu::kWarpThreads;
constexpr unsigned kScores = kQueries * kPositions;
constexpr unsigned kSide = 4;           // scores: queries, and positions, per thread; also threads across each
constexpr unsigned kQueriesOfHalf = 8;  // values
static_assert(kScores == kExactTile.threads);
static_assert(kQueries == kSide * kSide && kPositions == kSide * kSide && device::kRowLanes == kSide * kSide);
static_assert(kExactTile.threads == kQueries * device::kRowLanes &&
              kExactTile.threads == kPositions * device::kRowLanes);
static_assert(kExactTile.threads == kQueries / kQueriesOfHalf * (kColumns / 4));

/// Scores are stored in the order in which threads compute them: this maps a place to its position in the tile.
__device__ __forceinline__ uint32_t position_at(uint32_t place) {
  return place / kSide + place % kSide * kSide;
}

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

/// Loads some columns of the queries, value by value, zero-padded after the last column and the last query.
__device__ __forceinline__ void load_queries(const device::AttendRun& run, const device::BlockQueries& queries,
                                             device::KeyColumns columns, const Shared& shared) {
  const uint32_t row = gpu::thread_index() / device::kRowLanes;
  const uint32_t query = queries.first + row;
  for (uint32_t i = gpu::thread_index() % device::kRowLanes; i < columns.padded(); i += device::kRowLanes) {
    const bool is_there = i < columns.count && query < queries.end;
    shared.queries[row * shared.stride + i] = is_there ? device::query_value(run, query, columns.first + i) : 0.0F;
  }
}

/// Loads whole queries, a row at once if rows are whole 16-byte pieces; after the last query it repeats that one, whose
/// scores there are unused.
__device__ __forceinline__ void load_whole_queries(const device::AttendRun& run, const device::BlockQueries& queries,
                                                   const Shared& shared) {
  if (!device::has_whole_pieces(run, 4)) return load_queries(run, queries, {0, run.key_dim}, shared);
  constexpr unsigned kTurns = device::kPanelTurns<4>;
  const uint32_t row = gpu::thread_index() / device::kRowLanes;
  const uint32_t last = queries.end - 1;
  const device::QueryRow from(run, queries.first + row < last ? queries.first + row : last);
  const uint32_t first = gpu::thread_index() % device::kRowLanes * 4;
  float4 fours[kTurns];
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {  // without a branch, so that all loads are in flight at once
    const uint32_t column = first + turn * device::kRowLanes * 4;
    fours[turn] = gpu::load_four(from.at(column < run.key_dim ? column : 0));
  }
#pragma unroll
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    const uint32_t column = first + turn * device::kRowLanes * 4;
    if (column < run.key_dim) *reinterpret_cast<float4*>(shared.queries + row * shared.stride + column) = fours[turn];
  }
}

/// The keys of a tile: half a warp per row.
template <class Keys>
struct Tile {
  typename Keys::Fetched fetched;

  /// Loads columns of the keys from `first_position` on; zeros from `end` on.
  __device__ __forceinline__ void fetch(const device::AttendRun& run, const device::PositionMap& map,
                                        uint32_t first_position, uint32_t end, device::KeyColumns columns) {
    const uint32_t place = first_position + gpu::thread_index() / device::kRowLanes;
    const bool is_there = place < end;
    fetched = Keys::fetch(run, is_there ? map.at(place) : 0, is_there, columns);
  }
  __device__ __forceinline__ void store(const device::AttendRun& run, device::KeyColumns columns,
                                        const Shared& shared) const {
    Keys::store(run, fetched, columns, shared.keys + gpu::thread_index() / device::kRowLanes * shared.stride);
  }
};

/// Adds some groups of four columns to the scores of this thread's queries and positions. Of every sixteen groups half
/// a warp has one, four apart from the other half's, so that keys of both halves touch all banks once.
__device__ __forceinline__ void add_scores(const Shared& shared, uint32_t fours, float (&scores)[kSide][kSide]) {
  const unsigned lane = gpu::lane_index();
  const float* queries = shared.queries + lane / kSide % kSide * shared.stride;
  const float* keys = shared.keys + lane % kSide * shared.stride;
  const unsigned warp = gpu::warp_index();
  for (uint32_t four = warp % 4 + warp / 4 * 8 + lane / 16 * 4; four < fours; four += 2 * kWarps) {
    float4 key[kSide];
#pragma unroll
    for (unsigned j = 0; j < kSide; ++j)
      key[j] = *reinterpret_cast<const float4*>(keys + j * kSide * shared.stride + four * 4);
#pragma unroll
    for (unsigned i = 0; i < kSide; ++i) {
      const float4 query = *reinterpret_cast<const float4*>(queries + i * kSide * shared.stride + four * 4);
#pragma unroll
      for (unsigned j = 0; j < kSide; ++j) {
        float& score = scores[i][j];
        score = gpu::fma_rn(query.x, key[j].x, score);
        score = gpu::fma_rn(query.y, key[j].y, score);
        score = gpu::fma_rn(query.z, key[j].z, score);
        score = gpu::fma_rn(query.w, key[j].w, score);
      }
    }
  }
}

/// Stores this warp's part of the scores, the sum of its halves: each half adds up two of a thread's four queries.
__device__ __forceinline__ void store_scores(const Shared& shared, const float (&scores)[kSide][kSide]) {
  const unsigned lane = gpu::lane_index();
  const bool is_upper = lane / 16 == 1;
  float* part = shared.scores + gpu::warp_index() * kScores;
#pragma unroll
  for (unsigned i = 0; i < kSide / 2; ++i) {
    float sums[kSide];
#pragma unroll
    for (unsigned j = 0; j < kSide; ++j) {
      const float mine = is_upper ? scores[i + kSide / 2][j] : scores[i][j];
      const float others = is_upper ? scores[i][j] : scores[i + kSide / 2][j];
      sums[j] = mine + gpu::shuffle_xor(others, 16);
    }
    const unsigned query = lane / kSide % kSide + (i + lane / 16 * (kSide / 2)) * kSide;
    *reinterpret_cast<float4*>(part + query * kPositions + lane % kSide * kSide) =
        make_float4(sums[0], sums[1], sums[2], sums[3]);
  }
}

/// Running state of a query; the same in its 16 lanes.
struct Softmax {
  float maximum;
  float sum;
};

/// Turns this thread's score into a weight relative to the running maximum.
__device__ __forceinline__ void weigh(const Shared& shared, bool is_seen, float scale, Softmax& softmax) {
  const unsigned thread = gpu::thread_index();
  float score = 0;
#pragma unroll
  for (unsigned part = 0; part < kWarps; ++part)
    score += shared.scores[part * kScores + thread];
  score *= scale;
  score = is_seen ? score : device::minus_infinity();
  float maximum = score;
#pragma unroll
  for (unsigned apart = kPositions / 2; apart > 0; apart /= 2)
    maximum = device::larger(gpu::shuffle_xor(maximum, apart), maximum);
  maximum = device::larger(maximum, softmax.maximum);
  // If nothing has been seen yet, weights and factor are exp of minus infinity, 0.
  const float base = maximum == device::minus_infinity() ? 0.0F : maximum;
  const float weight = gpu::exponential(score - base);
  float sum = weight;
#pragma unroll
  for (unsigned apart = kPositions / 2; apart > 0; apart /= 2)
    sum += gpu::shuffle_xor(sum, apart);
  const float factor = gpu::exponential(softmax.maximum - base);
  softmax.sum = gpu::fma_rn(softmax.sum, factor, sum);
  softmax.maximum = maximum;
  shared.scores[thread] = weight;  // no other thread reads this place of any part
  if (thread % kPositions == 0) shared.factors[thread / kPositions] = factor;
}

/// values = values * factor + weights . keys for this thread's columns, which begin at `at` in shared memory.
__device__ __forceinline__ void add_values(const Shared& shared, uint32_t at, float4 (&values)[kQueriesOfHalf]) {
  const unsigned first_query = gpu::thread_index() / (kColumns / 4) * kQueriesOfHalf;
#pragma unroll
  for (unsigned i = 0; i < kQueriesOfHalf; ++i) {
    const float factor = shared.factors[first_query + i];
    values[i] = make_float4(values[i].x * factor, values[i].y * factor, values[i].z * factor, values[i].w * factor);
  }
#pragma unroll 1  // the next tile's keys leave no registers for more
  for (unsigned place = 0; place < kPositions; place += 4) {
    float4 keys[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
      keys[j] = *reinterpret_cast<const float4*>(shared.keys + position_at(place + j) * shared.stride + at);
#pragma unroll
    for (unsigned i = 0; i < kQueriesOfHalf; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(shared.scores + (first_query + i) * kPositions + place);
      const float weights[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        values[i].x = gpu::fma_rn(weights[j], keys[j].x, values[i].x);
        values[i].y = gpu::fma_rn(weights[j], keys[j].y, values[i].y);
        values[i].z = gpu::fma_rn(weights[j], keys[j].z, values[i].z);
        values[i].w = gpu::fma_rn(weights[j], keys[j].w, values[i].w);
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
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
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
  constexpr bool kWhole = Keys::kWhole;
  const uint32_t quad = gpu::thread_index() % (kColumns / 4);
  Softmax softmax = {device::minus_infinity(), 0};
  float4 values[kQueriesOfHalf] = {};
  Tile<Keys> tile;  // if keys are whole: in flight since the previous tile was used
  if constexpr (kWhole) {
    tile.fetch(run, map, block.begin, block.end, {0, run.key_dim});
    load_whole_queries(run, queries, shared);
  }
  for (uint32_t position = block.begin; position < block.end;) {
    const uint32_t next = block.behind(position, kPositions);
    float scores[kSide][kSide] = {};
    for (uint32_t first = 0; first < run.key_dim; first += kPanel) {
      const device::KeyColumns panel = {first, run.key_dim - first < kPanel ? run.key_dim - first : kPanel};
      gpu::block_barrier();  // the previous keys have been used
      if constexpr (!kWhole) {
        load_queries(run, queries, panel, shared);
        tile.fetch(run, map, position, block.end, panel);
      }
      tile.store(run, panel, shared);
      gpu::block_barrier();  // keys and queries are in shared memory
      add_scores(shared, panel.padded() / 4, scores);
      if constexpr (kWhole) break;
    }
    store_scores(shared, scores);
    if constexpr (kWhole) tile.fetch(run, map, next, block.end, {0, run.key_dim});
    gpu::block_barrier();  // the scores of all parts are stored, and the keys have been used for them
    const uint32_t my_position = position + position_at(gpu::thread_index() % kPositions);
    weigh(shared, mine.holds(my_position), run.scale, softmax);
    if constexpr (!kWhole) {
      const device::KeyColumns of_values = {first_column, columns};
      tile.fetch(run, map, position, block.end, of_values);
      tile.store(run, of_values, shared);
    }
    gpu::block_barrier();  // weights, factors and values are stored
    if (quad * 4 < columns) add_values(shared, (kWhole ? first_column : 0) + quad * 4, values);
    position = next;
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

bool is_whole(const MlaAttendTask& task) {
  return uint64_t{task.latent_dim} + task.rope_dim <= kPanel && reinterpret_cast<uint64_t>(task.cache) % 16 == 0;
}

template <class Stored>
void run_stored(gpu::Stream& stream, const MlaAttendTask& task) {
  if (is_whole(task) && (task.latent_dim + task.rope_dim) % Stored::kPer16 == 0)
    return run_exact<device::StoredKeys<Stored>>(stream, task);
  run_exact<device::SingleKeys<device::StoredValue<Stored>>>(stream, task);
}

void run_fp8(gpu::Stream& stream, const MlaAttendTask& task) {
  const bool are_pieces = task.latent_dim % 16 == 0 && task.rope_dim % 8 == 0;
  if (is_whole(task) && are_pieces) return run_exact<device::Fp8Keys>(stream, task);
  run_exact<device::SingleKeys<device::Fp8Value>>(stream, task);
}

}  // namespace

void attend_exact(gpu::Stream& stream, const MlaAttendTask& task) {
  // The checks admit only these types.
  if (task.cache_dtype == Dtype::bf16) return run_stored<device::StoredBf16>(stream, task);
  if (task.cache_dtype == Dtype::f16) return run_stored<device::StoredF16>(stream, task);
  if (task.cache_dtype == Dtype::f8_e4m3) return run_fp8(stream, task);
  run_stored<device::StoredF32>(stream, task);
}

}  // namespace dspack::kernels::cuda
