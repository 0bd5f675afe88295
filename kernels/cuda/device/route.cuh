// Routing of one token by a block: every thread scores some experts, a thread a group adds up its best, one warp
// chooses. What is compared with what, and in which order sums are taken, is as in kernels/cpu/route.cpp. Nothing
// depends on how many threads the block has, as long as there is one for each of the first 256 experts.
#pragma once

#include <dspack_gpu.h>

#include <cstring>

#include "kernels/cuda/route.h"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kRouteWarps = 8;  // of a block, at most

/// Shared memory of a block.
struct RouteMemory {
  double* of_warps;        // [kRouteWarps]
  float* choice;           // [experts]: scores with bias
  float* group_scores;     // [groups]
  uint32_t* taken;         // [experts]: 1 where an expert cannot be chosen (any more)
  uint32_t* groups_taken;  // [groups]: 1 where a group is kept
};

__device__ __forceinline__ RouteMemory lay_out(const RouteTask& task) {
  RouteMemory memory;
  memory.of_warps = gpu::shared_memory<double>();
  memory.choice = reinterpret_cast<float*>(memory.of_warps + kRouteWarps);
  memory.group_scores = memory.choice + task.experts;
  memory.taken = reinterpret_cast<uint32_t*>(memory.group_scores + task.groups);
  memory.groups_taken = memory.taken + task.experts;
  return memory;
}

__device__ __forceinline__ double shuffle_double(double value, unsigned mask) {
  uint32_t words[2];
  memcpy(words, &value, sizeof(value));
  words[0] = gpu::shuffle_xor(words[0], mask);
  words[1] = gpu::shuffle_xor(words[1], mask);
  memcpy(&value, words, sizeof(value));
  return value;
}

/// operation(a, b) over the values of all threads, in every thread. All threads of the block.
template <class Operation>
__device__ __forceinline__ double reduce_block(double value, double* of_warps, Operation operation) {
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
    value = operation(value, shuffle_double(value, apart));
  gpu::block_barrier();  // an earlier reduction has been read
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = value;
  gpu::block_barrier();  // the warps' values are there
  value = of_warps[0];
  for (unsigned warp = 1; warp < gpu::block_threads() / gpu::kWarpThreads; ++warp)
    value = operation(value, of_warps[warp]);
  return value;
}

__device__ inline void apply_sigmoid(float* scores, uint32_t experts) {
  for (uint32_t i = gpu::thread_index(); i < experts; i += gpu::block_threads())
    scores[i] = static_cast<float>(1.0 / (1.0 + gpu::exponential(-static_cast<double>(scores[i]))));
}

/// A NaN among the scores makes all of them NaN, by way of the sum.
__device__ inline void apply_softmax(float* scores, uint32_t experts, double* of_warps) {
  double largest = static_cast<double>(scores[0]);
  for (uint32_t i = gpu::thread_index(); i < experts; i += gpu::block_threads())
    largest = static_cast<double>(scores[i]) > largest ? static_cast<double>(scores[i]) : largest;
  largest = reduce_block(largest, of_warps, [](double a, double b) { return b > a ? b : a; });
  double sum = 0;
  for (uint32_t i = gpu::thread_index(); i < experts; i += gpu::block_threads())
    sum += gpu::exponential(static_cast<double>(scores[i]) - largest);
  sum = reduce_block(sum, of_warps, [](double a, double b) { return a + b; });
  for (uint32_t i = gpu::thread_index(); i < experts; i += gpu::block_threads())
    scores[i] = static_cast<float>(gpu::exponential(static_cast<double>(scores[i]) - largest) / sum);
}

/// std::max and std::min, which say what becomes of NaN.
__device__ __forceinline__ float larger_of(float a, float b) {
  return a < b ? b : a;
}
__device__ __forceinline__ float smaller_of(float a, float b) {
  return b < a ? b : a;
}

__device__ __forceinline__ float score_of_group(const float* group, uint32_t size, GroupScore how) {
  float first = gpu::bits_to_float(0xff800000U);  // minus infinity
  float second = first;
  for (uint32_t i = 0; i < size; ++i) {
    second = larger_of(second, smaller_of(first, group[i]));
    first = larger_of(first, group[i]);
  }
  return how == GroupScore::top2_sum && size > 1 ? first + second : first;
}

inline constexpr uint32_t kNoIndex = 0xffffffffU;

/// The best of many values and where it is: the largest, of equals the one with the lowest index; NaN is never larger.
/// Merging is the same in any order.
struct Best {
  float value = 0;
  uint32_t index = kNoIndex;  // kNoIndex: none yet
};

/// NaN is left out: what is none afterwards has seen nothing else.
__device__ __forceinline__ Best better_of(const Best& a, const Best& b) {
  if (b.index == kNoIndex || b.value != b.value) return a;
  if (a.index == kNoIndex || b.value > a.value) return b;
  return b.value == a.value && b.index < a.index ? b : a;
}

/// Of all lanes, in every lane.
__device__ __forceinline__ Best best_of_warp(Best best) {
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const Best other{gpu::shuffle_xor(best.value, apart), gpu::shuffle_xor(best.index, apart)};
    best = better_of(best, other);
  }
  return best;
}

/// One warp: the index of the largest value that is not taken, the lower one of equals. As on the CPU, where a NaN that
/// comes first is beaten by nothing, and later ones beat nothing.
__device__ inline uint32_t best_index(const float* values, const uint32_t* taken, uint32_t count) {
  Best best;
  uint32_t first = kNoIndex;
  for (uint32_t i = gpu::lane_index(); i < count; i += gpu::kWarpThreads) {
    if (taken[i] != 0) continue;
    first = i < first ? i : first;
    best = better_of(best, {values[i], i});
  }
  best = best_of_warp(best);
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2) {
    const unsigned other = gpu::shuffle_xor(first, apart);
    first = other < first ? other : first;
  }
  const bool is_number = values[first] == values[first];
  return is_number && best.index != kNoIndex ? best.index : first;
}

/// One warp.
__device__ inline void keep_best_groups(const RouteTask& task, const RouteMemory& memory) {
  for (uint32_t n = 0; n < task.groups_kept; ++n) {
    const uint32_t best = best_index(memory.group_scores, memory.groups_taken, task.groups);
    gpu::warp_barrier();  // all lanes have read the flags
    if (gpu::lane_index() == 0) memory.groups_taken[best] = 1;
    gpu::warp_barrier();  // and see the new one
  }
}

/// One warp.
__device__ inline void choose_experts_of(const RouteTask& task, const RouteMemory& memory, const float* scores,
                                         uint32_t* ids, float* weights) {
  float sum = 0;
  for (uint32_t slot = 0; slot < task.top_k; ++slot) {
    const uint32_t best = best_index(memory.choice, memory.taken, task.experts);
    sum += scores[best];
    gpu::warp_barrier();  // all lanes have read the flags
    if (gpu::lane_index() == 0) {
      memory.taken[best] = 1;
      ids[slot] = best;
    }
    gpu::warp_barrier();  // and see the new one, and the id
  }
  for (uint32_t slot = gpu::lane_index(); slot < task.top_k; slot += gpu::kWarpThreads) {
    const float weight = scores[ids[slot]];
    weights[slot] = (task.normalise ? gpu::divide(weight, sum + 1e-20F) : weight) * task.scale;
  }
}

/// One row; every thread of the block takes part.
__device__ inline void route_row(const RouteTask& task, uint64_t row) {
  const RouteMemory memory = lay_out(task);
  float* scores = task.logits + row * task.experts;
  const uint32_t group_size = task.experts / task.groups;
  switch (task.score) {
    case ScoreFunction::sigmoid: apply_sigmoid(scores, task.experts); break;
    case ScoreFunction::softmax: apply_softmax(scores, task.experts, memory.of_warps); break;
  }
  for (uint32_t i = gpu::thread_index(); i < task.experts; i += gpu::block_threads()) {
    memory.choice[i] = task.bias == nullptr ? scores[i] : scores[i] + task.bias[i];
    memory.taken[i] = 0;
  }
  gpu::block_barrier();  // scores and choice are there
  if (task.groups_kept != task.groups) {
    for (uint32_t group = gpu::thread_index(); group < task.groups; group += gpu::block_threads()) {
      memory.group_scores[group] = score_of_group(memory.choice + group * group_size, group_size, task.group_score);
      memory.groups_taken[group] = 0;
    }
    gpu::block_barrier();  // the groups' scores are there
    if (gpu::warp_index() == 0) keep_best_groups(task, memory);
    gpu::block_barrier();  // the kept groups are known
    for (uint32_t i = gpu::thread_index(); i < task.experts; i += gpu::block_threads())
      memory.taken[i] = 1 - memory.groups_taken[i / group_size];
    gpu::block_barrier();  // the flags are there
  }
  if (gpu::warp_index() != 0) return;
  choose_experts_of(task, memory, scores, task.ids + row * task.top_k, task.weights + row * task.top_k);
}

/// Behind a product that wrote logits: the launch's last block to be done routes all rows. Every thread of the block
/// takes part; nobody needs its shared memory any more. `counter`: zero, and zero again when the launch has run.
__device__ inline void route_last(const RouteTask& task, uint32_t* counter) {
  auto* is_last = gpu::shared_memory<uint32_t>();
  gpu::block_barrier();  // all of the block's logits are written
  if (gpu::thread_index() == 0) *is_last = gpu::count_up(counter) == gpu::grid_blocks().x - 1 ? 1 : 0;
  gpu::block_barrier();  // who is last is known, and others' logits can be read
  const bool routes = *is_last != 0;
  gpu::block_barrier();  // the word has been read before routing takes its place
  if (!routes) return;
  for (uint64_t row = 0; row < task.rows; ++row) {
    route_row(task, row);
    gpu::block_barrier();  // the row's memory is free for the next
  }
  if (gpu::thread_index() == 0) *counter = 0;
}

}  // namespace dspack::kernels::cuda::device
