// Sampling takes three launches of several blocks per row, with a warp per chunk of logits.
//
//   survey    the highest logit of the row
//   weigh     weights. Without top-k and top-p: the first arrival of each chunk. Otherwise: the bucket of each logit
//             by distance below the highest, and for each bucket the number of logits and the sum of their weights
//   choose    without top-k and top-p the first arrival of all chunks. Otherwise a list of the logits by bucket; the
//             row's last block finds the tokens that top-k and top-p keep, by the bucket in which a count or a sum
//             of weights ends and the place in it, and the first arrival among them
#include "kernels/cuda/tokens/sample.h"

#include <dspack_gpu.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/tokens/sample.cuh"
#include "kernels/sample_noise.h"
#include "kernels/sample_weights.h"

namespace dspack::kernels::cuda {
namespace {

constexpr uint32_t kSpan = device::kSampleWarps * kSampleChunk;  // logits per block
constexpr unsigned kOfLane = kSampleChunk / gpu::kWarpThreads;
constexpr uint32_t kNoBucket = UINT16_MAX;

__device__ __forceinline__ uint32_t chunk_of_warp() {
  return gpu::block_index().y * device::kSampleWarps + gpu::warp_index();
}
/// The index of this lane's value `i` of kOfLane.
__device__ __forceinline__ uint32_t index_of(unsigned i) {
  return chunk_of_warp() * kSampleChunk + i * gpu::kWarpThreads + gpu::lane_index();
}

/// Clears the rest of the scratch memory.
__device__ __forceinline__ void clear_buckets(const SampleTask& task, uint32_t row) {
  const uint32_t turn = gpu::grid_blocks().y * device::kSampleThreads;
  for (uint32_t i = gpu::block_index().y * device::kSampleThreads + gpu::thread_index(); i < kSampleBuckets;
       i += turn) {
    const uint64_t at = uint64_t{row} * kSampleBuckets + i;
    task.scratch.counts[at] = 0;
    task.scratch.placed[at] = 0;
    task.scratch.sums[at] = 0;
  }
  if (gpu::block_index().y == 0 && gpu::thread_index() == 0) task.scratch.done[row] = 0;
}

/// Finishes one row. Call with a warp of the launch's last block.
__device__ __forceinline__ void finish_survey(const SampleTask& task, uint32_t row) {
  const uint32_t parts = gpu::grid_blocks().y;
  uint32_t highest = 0;
  for (uint32_t part = gpu::lane_index(); part < parts; part += gpu::kWarpThreads) {
    const uint32_t other = task.scratch.highest[uint64_t{row} * parts + part];
    highest = other > highest ? other : highest;
  }
  highest = gpu::largest_of_warp(highest);
  if (gpu::lane_index() != 0) return;
  const bool is_finite = highest < device::kOrderOfInfinity && highest > device::kOrderOfMinusInfinity;
  task.scratch.of_rows[row] = {.highest = highest, .is_valid = is_finite && task.settings->temperature > 0 ? 1U : 0U};
  task.ids[row] = kNoToken;  // until one is chosen
}

struct SurveyMemory {
  uint32_t of_warps[device::kSampleWarps];
  uint32_t is_last;
};

__global__ void __launch_bounds__(device::kSampleThreads) survey_kernel(SampleTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  auto& memory = *gpu::shared_memory<SurveyMemory>();
  const uint32_t row = gpu::block_index().x;
  const float* logits = task.logits.data + row * task.logits.stride;
  uint32_t highest = 0;
#pragma unroll
  for (unsigned i = 0; i < kOfLane; ++i) {
    const uint32_t order = index_of(i) < task.cols ? device::order_of(logits[index_of(i)]) : 0;
    highest = order > highest ? order : highest;
  }
  clear_buckets(task, row);
  highest = gpu::largest_of_warp(highest);
  if (gpu::lane_index() == 0) memory.of_warps[gpu::warp_index()] = highest;
  gpu::block_barrier();  // the warps' highest are stored
  if (gpu::thread_index() == 0) {
    for (const uint32_t other : memory.of_warps)
      highest = other > highest ? other : highest;
    task.scratch.highest[uint64_t{row} * gpu::grid_blocks().y + gpu::block_index().y] = highest;
    memory.is_last = gpu::count_up(task.counter) == gpu::grid_blocks().x * gpu::grid_blocks().y - 1 ? 1 : 0;
  }
  gpu::block_barrier();  // is_last is stored, and other blocks' highest are visible
  if (memory.is_last == 0) return;
  for (uint32_t each = gpu::warp_index(); each < task.rows; each += device::kSampleWarps)
    finish_survey(task, each);
  if (gpu::thread_index() == 0) *task.counter = 0;
}

/// Selections that the settings require.
struct SampleWay {
  bool by_value;  // top-p
  bool is_cut;    // top-k
};

__device__ __forceinline__ SampleWay way_of(const SampleSettings& settings, uint32_t cols) {
  return {.by_value = settings.top_p<1, .is_cut = settings.top_k> 0 && settings.top_k < cols};
}

/// Weights of one row's logits.
struct Scale {
  double highest;
  double temperature;
  double min_p;

  /// The exponent.
  [[nodiscard]] __device__ __forceinline__ double below(float logit) const {
    return (static_cast<double>(logit) - highest) / temperature;
  }
  [[nodiscard]] __device__ __forceinline__ uint64_t weight(uint32_t order) const {
    return weight_of(below(device::value_of(order)));
  }
  /// 0 for tokens that min-p excludes.
  [[nodiscard]] __device__ __forceinline__ uint64_t likely(uint64_t weight) const {
    return is_unlikely(weight, min_p) ? 0 : weight;
  }
};

__device__ __forceinline__ Scale scale_of(const SampleRow& known, const SampleSettings& settings) {
  return {.highest = static_cast<double>(device::value_of(known.highest)),
          .temperature = settings.temperature,
          .min_p = settings.min_p};
}

/// The bucket of an exponent <= 0; none if it is so low that weight_of() is 0.
__device__ __forceinline__ uint32_t bucket_of(double below) {
  constexpr double kLowest = -31.5;
  constexpr double kOfUnit = 65;
  static_assert(-kLowest * kOfUnit < kSampleBuckets);
  return below >= kLowest ? static_cast<uint32_t>(-below * kOfUnit) : kNoBucket;
}

/// Adds each lane's logit to its bucket, with one addition if all lanes have the same bucket. Call with a whole warp.
__device__ __forceinline__ void add_to_bucket(const SampleTask& task, uint64_t row, uint32_t bucket, uint64_t weight) {
  const bool is_one = gpu::ballot(bucket == gpu::shuffle(bucket, 0)) == UINT32_MAX;
  if (is_one && bucket == kNoBucket) return;
  if (is_one) weight = device::sum_of_warp(weight);
  if (bucket == kNoBucket || (is_one && gpu::lane_index() != 0)) return;
  const uint64_t at = row * kSampleBuckets + bucket;
  gpu::add_together(task.scratch.counts + at, is_one ? gpu::kWarpThreads : 1);
  if (weight != 0) gpu::add_together(task.scratch.sums + at, weight);
}

__global__ void __launch_bounds__(device::kSampleThreads) weigh_kernel(SampleTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint32_t row = gpu::block_index().x;
  const float* logits = task.logits.data + row * task.logits.stride;
  float mine[kOfLane];
#pragma unroll
  for (unsigned i = 0; i < kOfLane; ++i)
    mine[i] = index_of(i) < task.cols ? logits[index_of(i)] : -INFINITY;
  const SampleRow known = task.scratch.of_rows[row];
  const SampleSettings settings = *task.settings;
  const NoiseKey key = task.keys[row];
  if (known.is_valid == 0) return;
  const SampleWay way = way_of(settings, task.cols);
  const Scale scale = scale_of(known, settings);
  Arrival first;
#pragma unroll
  for (unsigned i = 0; i < kOfLane; ++i) {
    const double below = scale.below(mine[i]);
    const uint64_t weight = weight_of(below);
    if (!way.by_value && !way.is_cut) {
      first = first_with(first, key, index_of(i), scale.likely(weight));
      continue;
    }
    const uint32_t bucket = bucket_of(below);
    add_to_bucket(task, row, bucket, weight);
    if (index_of(i) < task.cols)
      task.scratch.buckets[uint64_t{row} * task.cols + index_of(i)] = static_cast<uint16_t>(bucket);
  }
  if (way.by_value || way.is_cut) return;
  first = device::first_of_warp(first);
  const uint32_t chunks = task.scratch.chunks;
  if (gpu::lane_index() == 0 && chunk_of_warp() < chunks)
    task.scratch.arrivals[uint64_t{row} * chunks + chunk_of_warp()] = first;
}

struct ChoiceMemory {
  device::Before begin;   // number of entries before each bucket
  device::Before before;  // weight before each bucket
  device::SelectMemory select;
  uint64_t of_warps[device::kSampleWarps];
  Arrival first_of_warps[device::kSampleWarps];
  uint32_t bucket;
  uint32_t is_last;
};

/// The choice for one row, by one block.
struct Draw {
  const SampleTask& task;
  ChoiceMemory& memory;
  uint64_t row;
  Scale scale;
  SampleWay way;

  [[nodiscard]] __device__ __forceinline__ SampleEntry entry(uint32_t place) const {
    return task.scratch.entries[row * task.cols + place];
  }
  [[nodiscard]] __device__ __forceinline__ uint32_t begin_of(uint32_t bucket) const {
    return static_cast<uint32_t>(memory.begin[bucket]);
  }
  /// The sum of weigh(entry) over a bucket.
  template <class Weigh>
  [[nodiscard]] __device__ __forceinline__ uint64_t sum_of(uint32_t bucket, Weigh weigh) const {
    uint64_t sum = 0;
    for (uint32_t i = begin_of(bucket) + gpu::thread_index(); i < begin_of(bucket + 1); i += device::kSampleThreads)
      sum += weigh(entry(i));
    return device::sum_of_block(sum, memory.of_warps);
  }
  /// Selects by cumulative value among a bucket's entries.
  template <class Weigh>
  [[nodiscard]] __device__ __forceinline__ device::Selected select(uint32_t bucket, uint64_t place, Weigh weigh) const {
    return device::select_at(memory.select, begin_of(bucket), begin_of(bucket + 1), place, [&](uint32_t i) {
      const SampleEntry one = entry(i);
      return device::Weighed{one.order, weigh(one)};
    });
  }
  [[nodiscard]] __device__ __forceinline__ uint32_t bucket_at(const device::Before& before, uint64_t place) const {
    return device::bucket_at(before, place, &memory.bucket);
  }
};

/// The entries that top-k and top-p keep: none after this bucket; those of a higher order, and of this order the first
/// ones by index.
struct Kept {
  uint32_t bucket;
  uint32_t order;
  uint32_t last_index;
};

__device__ __forceinline__ Kept keep_highest(const Draw& draw) {
  const uint32_t top_k = draw.task.settings->top_k;
  const uint64_t all = draw.memory.begin[kSampleBuckets];
  if (!draw.way.is_cut || top_k > all) return {.bucket = kSampleBuckets - 1, .order = 0, .last_index = UINT32_MAX};
  const uint32_t bucket = draw.bucket_at(draw.memory.begin, top_k - 1);
  const auto one = [](const SampleEntry&) { return uint64_t{1}; };
  const uint32_t order = draw.select(bucket, top_k - 1 - draw.memory.begin[bucket], one).key;
  return {.bucket = bucket, .order = order, .last_index = UINT32_MAX};
}

/// Applies top-p to the entries that top-k keeps.
__device__ __forceinline__ Kept keep_nucleus(const Draw& draw, const Kept& cut) {
  const device::Before& before = draw.memory.before;
  device::add_up(draw.task.scratch.sums + draw.row * kSampleBuckets, draw.memory.before, draw.memory.of_warps);
  const auto weight_of_cut = [&](const SampleEntry& one) {
    return one.order >= cut.order ? draw.scale.weight(one.order) : 0;
  };
  const uint64_t sum =
      cut.order == 0 ? before[kSampleBuckets] : before[cut.bucket] + draw.sum_of(cut.bucket, weight_of_cut);
  const uint64_t last = last_place_of(draw.task.settings->top_p, sum);
  const uint32_t bucket = draw.bucket_at(before, last);
  const device::Selected at = draw.select(bucket, last - before[bucket], weight_of_cut);
  const uint64_t rank = at.place / draw.scale.weight(at.key);  // rank of the last kept entry among its equals
  const auto index =
      device::select_at(draw.memory.select, draw.begin_of(bucket), draw.begin_of(bucket + 1), rank, [&](uint32_t i) {
        const SampleEntry one = draw.entry(i);
        return device::Weighed{~one.index, one.order == at.key ? 1U : 0U};
      });
  return {.bucket = bucket, .order = at.key, .last_index = ~index.key};
}

/// The first arrival among the kept entries.
__device__ __forceinline__ Arrival first_of_kept(const Draw& draw, const Kept& kept) {
  const NoiseKey key = draw.task.keys[draw.row];
  Arrival first;
  for (uint32_t i = gpu::thread_index(); i < draw.begin_of(kept.bucket + 1); i += device::kSampleThreads) {
    const SampleEntry one = draw.entry(i);
    if (one.order < kept.order || (one.order == kept.order && one.index > kept.last_index)) continue;
    first = first_with(first, key, one.index, draw.scale.likely(draw.scale.weight(one.order)));
  }
  return device::first_of_block(first, draw.memory.first_of_warps);
}

/// The first arrival of all chunks.
__device__ __forceinline__ Arrival first_of_chunks(const Draw& draw) {
  const uint32_t chunks = draw.task.scratch.chunks;
  Arrival first;
  for (uint32_t chunk = gpu::thread_index(); chunk < chunks; chunk += device::kSampleThreads) {
    const Arrival other = draw.task.scratch.arrivals[draw.row * chunks + chunk];
    if (is_before(other, first)) first = other;
  }
  return device::first_of_block(first, draw.memory.first_of_warps);
}

/// Writes the block's part of the list.
__device__ __forceinline__ void place_entries(const Draw& draw) {
  const SampleTask& task = draw.task;
  const float* logits = task.logits.data + draw.row * task.logits.stride;
  uint32_t buckets[kOfLane];
  float values[kOfLane];
#pragma unroll
  for (unsigned i = 0; i < kOfLane; ++i) {
    const bool is_there = index_of(i) < task.cols;
    buckets[i] = is_there ? task.scratch.buckets[draw.row * task.cols + index_of(i)] : kNoBucket;
    values[i] = is_there ? logits[index_of(i)] : 0.0F;
  }
  device::add_up(task.scratch.counts + draw.row * kSampleBuckets, draw.memory.begin, draw.memory.of_warps);
#pragma unroll
  for (unsigned i = 0; i < kOfLane; ++i) {
    if (buckets[i] == kNoBucket) continue;
    const uint32_t place =
        draw.begin_of(buckets[i]) + gpu::add_together(task.scratch.placed + draw.row * kSampleBuckets + buckets[i], 1U);
    task.scratch.entries[draw.row * task.cols + place] = {.order = device::order_of(values[i]), .index = index_of(i)};
  }
}

__global__ void __launch_bounds__(device::kSampleThreads) choose_kernel(SampleTask task) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  auto& memory = *gpu::shared_memory<ChoiceMemory>();
  const uint32_t row = gpu::block_index().x;
  const SampleRow known = task.scratch.of_rows[row];
  const SampleSettings settings = *task.settings;
  if (known.is_valid == 0) return;
  const Draw draw{.task = task,
                  .memory = memory,
                  .row = row,
                  .scale = scale_of(known, settings),
                  .way = way_of(settings, task.cols)};
  if (!draw.way.by_value && !draw.way.is_cut) {
    if (gpu::block_index().y > 0) return;
    const Arrival first = first_of_chunks(draw);
    if (gpu::thread_index() == 0) task.ids[row] = first.token;
    return;
  }
  place_entries(draw);
  gpu::block_barrier();  // the block's entries are written
  if (gpu::thread_index() == 0)
    memory.is_last = gpu::count_up(task.scratch.done + row) == gpu::grid_blocks().y - 1 ? 1 : 0;
  gpu::block_barrier();  // is_last is stored, and other blocks' entries are visible
  if (memory.is_last == 0) return;
  const Kept highest = keep_highest(draw);
  const Arrival first = first_of_kept(draw, draw.way.by_value ? keep_nucleus(draw, highest) : highest);
  if (gpu::thread_index() == 0) task.ids[row] = first.token;
}

}  // namespace

gpu::LaunchShape choose_sample_launch(uint32_t rows, uint32_t cols) {
  return {.grid_x = rows, .grid_y = static_cast<unsigned>(ceil_div(cols, kSpan)), .threads = device::kSampleThreads};
}

SampleScratch lay_out_sample(std::byte* memory, uint32_t rows, uint32_t cols) {
  SampleScratch scratch;
  const auto add = [&]<class T>(T*& place, uint64_t count) {
    place = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + scratch.size_bytes);
    scratch.size_bytes += count * sizeof(T);
  };
  const uint64_t buckets = uint64_t{rows} * kSampleBuckets;
  add(scratch.entries, uint64_t{rows} * cols);  // arrays that need 8-byte alignment come first
  scratch.chunks = sample_chunks(cols);
  add(scratch.arrivals, uint64_t{rows} * scratch.chunks);
  add(scratch.sums, buckets);
  add(scratch.counts, buckets);
  add(scratch.placed, buckets);
  add(scratch.done, rows);
  add(scratch.highest, uint64_t{rows} * choose_sample_launch(rows, cols).grid_y);
  add(scratch.of_rows, rows);
  add(scratch.buckets, uint64_t{rows} * cols);
  return scratch;
}

uint64_t sample_scratch_bytes(uint32_t rows, uint32_t cols) {
  return lay_out_sample(nullptr, rows, cols).size_bytes;
}

void run_sample(gpu::Stream& stream, const SampleTask& task) {
  if (task.rows == 0) return;
  const gpu::LaunchShape shape = choose_sample_launch(task.rows, task.cols);
  gpu::LaunchShape survey = shape;
  survey.shared_bytes = sizeof(SurveyMemory);
  gpu::LaunchShape choice = shape;
  choice.shared_bytes = sizeof(ChoiceMemory);
  gpu::launch_overlapping(stream, survey, survey_kernel, task);
  gpu::launch_overlapping(stream, shape, weigh_kernel, task);
  gpu::launch_overlapping(stream, choice, choose_kernel, task);
}

}  // namespace dspack::kernels::cuda
