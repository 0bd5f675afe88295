// Routing of one token by a block. Nothing is chosen sequentially: an expert's slot is its rank, the number of experts
// that come before it, which each thread counts independently.
//
//   a warp per chunk (a group of experts, or 32)   scores; an expert's rank in its chunk; the best become candidates
//   with groups: a warp per group                  a group's rank by its best candidates; others' candidates are struck
//   a thread per candidate                         its rank among all candidates: its slot
//   a thread per slot                              its weight
//
// Comparisons, the order of sums and the treatment of NaN are those of kernels/cpu/route.cpp. Nothing depends on the
// number of threads.
#pragma once

#include <dspack_gpu.h>

#include <cstring>

#include "kernels/cuda/device/order.cuh"
#include "kernels/cuda/tokens/route.h"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kRouteWarps = 8;  // at most, per block

struct RoutePlan {
  bool has_groups;   // whether some groups are left out
  uint32_t chunk;    // experts that are ranked among themselves
  uint32_t chunks;   // the last one may be shorter
  uint32_t kept;     // best per chunk: no more can be chosen, and a group's score needs two
  uint32_t choices;  // kept * chunks
};

__host__ __device__ inline RoutePlan plan_route(const RouteTask& task) {
  RoutePlan plan{.has_groups = task.groups_kept != task.groups, .chunk = 0, .chunks = 0, .kept = 0, .choices = 0};
  plan.chunk = plan.has_groups ? task.experts / task.groups : gpu::kWarpThreads;
  plan.chunks = plan.has_groups ? task.groups : (task.experts + gpu::kWarpThreads - 1) / gpu::kWarpThreads;
  plan.kept = task.top_k > 2 ? task.top_k : 2;
  plan.kept = plan.kept < plan.chunk ? plan.kept : plan.chunk;
  plan.choices = plan.kept * plan.chunks;
  return plan;
}

/// Order of an expert's value (order.cuh); 0: none.
struct Candidates {
  uint32_t* keys;  // [choices], sorted within a chunk
  uint32_t* ids;   // [choices]
};

/// Shared memory of a block. Keys are 16-byte aligned.
struct RouteMemory {
  double* of_warps;      // [kRouteWarps]
  uint32_t* keys;        // [experts]: orders of scores with bias
  Candidates candidate;  // [choices]
  uint32_t* group_keys;  // [groups]
  float* scores;         // [experts]
  float* chosen;         // [top_k]: their scores
  uint32_t* has_nan;
};

__host__ __device__ inline uint32_t whole_fours(uint32_t words) {
  return (words + 3) / 4 * 4;
}

__host__ __device__ inline uint32_t route_shared_bytes(const RouteTask& task, const RoutePlan& plan) {
  const uint32_t words = whole_fours(task.experts) + 2 * whole_fours(plan.choices) + whole_fours(task.groups) +
                         task.experts + task.top_k + 1;
  return kRouteWarps * static_cast<uint32_t>(sizeof(double)) + words * static_cast<uint32_t>(sizeof(uint32_t));
}

__device__ __forceinline__ RouteMemory lay_out(const RouteTask& task, const RoutePlan& plan) {
  RouteMemory memory;
  memory.of_warps = gpu::shared_memory<double>();
  memory.keys = reinterpret_cast<uint32_t*>(memory.of_warps + kRouteWarps);
  memory.candidate.keys = memory.keys + whole_fours(task.experts);
  memory.candidate.ids = memory.candidate.keys + whole_fours(plan.choices);
  memory.group_keys = memory.candidate.ids + whole_fours(plan.choices);
  memory.scores = reinterpret_cast<float*>(memory.group_keys + whole_fours(task.groups));
  memory.chosen = memory.scores + task.experts;
  memory.has_nan = reinterpret_cast<uint32_t*>(memory.chosen + task.top_k);
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

/// Reduces operation(a, b) over the values of all threads, in every thread. Call with all threads of the block.
template <class Operation>
__device__ __forceinline__ double reduce_block(double value, double* of_warps, Operation operation) {
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
    value = operation(value, shuffle_double(value, apart));
  gpu::block_barrier();  // the previous reduction has been read
  if (gpu::lane_index() == 0) of_warps[gpu::warp_index()] = value;
  gpu::block_barrier();  // the warps' values are stored
  value = of_warps[0];
  for (unsigned warp = 1; warp < gpu::block_threads() / gpu::kWarpThreads; ++warp)
    value = operation(value, of_warps[warp]);
  return value;
}

/// Maximum and denominator of a softmax. A NaN among the logits makes the sum NaN.
struct Softmax {
  double largest = 0;
  double sum = 1;
};

__device__ inline Softmax find_softmax(const float* logits, uint32_t experts, double* of_warps) {
  Softmax all;
  all.largest = static_cast<double>(logits[0]);
  for (uint32_t i = gpu::thread_index(); i < experts; i += gpu::block_threads())
    all.largest = static_cast<double>(logits[i]) > all.largest ? static_cast<double>(logits[i]) : all.largest;
  all.largest = reduce_block(all.largest, of_warps, [](double a, double b) { return b > a ? b : a; });
  all.sum = 0;
  for (uint32_t i = gpu::thread_index(); i < experts; i += gpu::block_threads())
    all.sum += gpu::exponential(static_cast<double>(logits[i]) - all.largest);
  all.sum = reduce_block(all.sum, of_warps, [](double a, double b) { return a + b; });
  return all;
}

__device__ __forceinline__ float score_of(float logit, ScoreFunction score, const Softmax& softmax) {
  const auto wide = static_cast<double>(logit);
  if (score == ScoreFunction::sigmoid) return static_cast<float>(1.0 / (1.0 + gpu::exponential(-wide)));
  if (score == ScoreFunction::sqrt_softplus)
    return static_cast<float>(gpu::square_root(wide > 20 ? wide : gpu::log1p(gpu::exponential(wide))));
  return static_cast<float>(gpu::exponential(wide - softmax.largest) / softmax.sum);
}

/// The number of `count` keys that come before a key, which is not 0: larger ones, and equal ones at earlier places.
__device__ __forceinline__ uint32_t rank_among(const uint32_t* keys, uint32_t count, uint32_t key, uint32_t place) {
  constexpr uint32_t kFours = 4;  // read before the first is compared
  uint32_t rank = 0;
  uint32_t at = 0;
  const auto see = [&](uint32_t other, int behind) {
    const uint32_t limit = static_cast<int>(place - at) > behind ? key - 1 : key;
    if (other > limit) ++rank;
  };
  if (reinterpret_cast<uintptr_t>(keys) % sizeof(uint4) == 0) {
#pragma unroll 1
    for (; at + 4 * kFours <= count; at += 4 * kFours) {
      uint4 fours[kFours];
#pragma unroll
      for (uint32_t i = 0; i < kFours; ++i)
        fours[i] = *reinterpret_cast<const uint4*>(keys + at + 4 * i);
#pragma unroll
      for (int i = 0; i < static_cast<int>(kFours); ++i) {
        see(fours[i].x, 4 * i);
        see(fours[i].y, 4 * i + 1);
        see(fours[i].z, 4 * i + 2);
        see(fours[i].w, 4 * i + 3);
      }
    }
  }
#pragma unroll 4
  for (; at < count; ++at)
    see(keys[at], 0);
  return rank;
}

/// Computes the scores of a chunk's experts and ranks the best. Call with one warp.
__device__ __forceinline__ void rank_chunk(const RouteTask& task, const RoutePlan& plan, const RouteMemory& memory,
                                           const Softmax& softmax, float* logits, uint32_t chunk) {
  const uint32_t first = chunk * plan.chunk;
  const uint32_t count = task.experts - first < plan.chunk ? task.experts - first : plan.chunk;
  uint32_t* keys = memory.keys + first;
  for (uint32_t member = gpu::lane_index(); member < count; member += gpu::kWarpThreads) {
    const uint32_t expert = first + member;
    const float logit = logits[expert];
    const float bias = task.bias == nullptr ? 0.0F : task.bias[expert];
    const float score = score_of(logit, task.score, softmax);
    logits[expert] = score;
    memory.scores[expert] = score;
    keys[member] = order_of(task.bias == nullptr ? score : score + bias);
  }
  gpu::warp_barrier();  // the chunk's keys are stored
  const uint32_t begin = chunk * plan.kept;
  for (uint32_t member = gpu::lane_index(); member < count; member += gpu::kWarpThreads) {
    const uint32_t rank = rank_among(keys, count, keys[member], member);
    if (rank >= plan.kept) continue;
    memory.candidate.keys[begin + rank] = keys[member];
    memory.candidate.ids[begin + rank] = first + member;
  }
  for (uint32_t rank = count + gpu::lane_index(); rank < plan.kept; rank += gpu::kWarpThreads)
    memory.candidate.keys[begin + rank] = 0;
}

/// Keeps only the candidates of the best groups. A NaN in a group is its first candidate and makes its score NaN, which
/// precedes all numbers; so does the sum of opposite infinities. Call with all threads of the block.
__device__ __forceinline__ void strike_groups(const RouteTask& task, const RoutePlan& plan, const RouteMemory& memory) {
  for (uint32_t group = gpu::thread_index(); group < task.groups; group += gpu::block_threads()) {
    const uint32_t* keys = memory.candidate.keys + group * plan.kept;
    const float first = value_of(keys[0]);
    const bool takes_two = task.group_score == GroupScore::top2_sum && plan.chunk > 1;
    memory.group_keys[group] = order_of(takes_two ? first + value_of(keys[1]) : first);
  }
  gpu::block_barrier();  // the groups' scores are stored
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint32_t group = gpu::warp_index(); group < task.groups; group += warps) {
    const uint32_t key = memory.group_keys[group];
    uint32_t* keys = memory.candidate.keys + group * plan.kept;
    const bool is_kept = rank_among(memory.group_keys, task.groups, key, group) < task.groups_kept;
    for (uint32_t slot = gpu::lane_index(); !is_kept && slot < plan.kept; slot += gpu::kWarpThreads)
      keys[slot] = 0;
    if (is_kept && key == kOrderOfNan && gpu::lane_index() == 0) keys[0] = kOrderOfNan;
  }
  gpu::block_barrier();  // the remaining candidates are final
}

/// std::max and std::min, including their treatment of NaN.
__device__ __forceinline__ float larger_of(float a, float b) {
  return a < b ? b : a;
}
__device__ __forceinline__ float smaller_of(float a, float b) {
  return b < a ? b : a;
}

__device__ __forceinline__ float score_of_group(const uint32_t* keys, uint32_t size, GroupScore how) {
  float first = value_of(kOrderOfMinusInfinity);
  float second = first;
  for (uint32_t i = 0; i < size; ++i) {
    second = larger_of(second, smaller_of(first, value_of(keys[i])));
    first = larger_of(first, value_of(keys[i]));
  }
  return how == GroupScore::top2_sum && size > 1 ? first + second : first;
}

/// Index of the largest value, the lowest among equals; nothing is larger than a NaN, and a NaN is not larger than
/// anything. Sets its key to 0, so that it is not found again.
__device__ __forceinline__ uint32_t take_largest(uint32_t* keys, uint32_t count) {
  uint32_t best = count;
  for (uint32_t i = 0; i < count; ++i) {
    if (keys[i] != 0 && (best == count || value_of(keys[i]) > value_of(keys[best]))) best = i;
  }
  keys[best] = 0;
  return best;
}

/// One thread, as on the CPU. With NaN there is no rank: each choice depends on the earlier ones.
__device__ __forceinline__ void choose_one_by_one(const RouteTask& task, const RoutePlan& plan,
                                                  const RouteMemory& memory, uint32_t* ids) {
  if (plan.has_groups) {
    for (uint32_t group = 0; group < task.groups; ++group)
      memory.group_keys[group] =
          order_of(score_of_group(memory.keys + group * plan.chunk, plan.chunk, task.group_score));
    for (uint32_t n = 0; n < task.groups_kept; ++n)
      take_largest(memory.group_keys, task.groups);
    for (uint32_t expert = 0; expert < task.experts; ++expert) {
      if (memory.group_keys[expert / plan.chunk] != 0) memory.keys[expert] = 0;
    }
  }
  for (uint32_t slot = 0; slot < task.top_k; ++slot) {
    ids[slot] = take_largest(memory.keys, task.experts);
    memory.chosen[slot] = memory.scores[ids[slot]];
  }
}

/// Computes a row's scores, and takes its token's experts. Call with every thread of the block.
__device__ __forceinline__ void take_by_token(const RouteTask& task, const RouteMemory& memory, const Softmax& softmax,
                                              float* logits, uint64_t row) {
  const uint32_t* experts = task.by_token.experts + uint64_t{task.by_token.tokens[row]} * task.top_k;
  for (uint32_t expert = gpu::thread_index(); expert < task.experts; expert += gpu::block_threads())
    logits[expert] = memory.scores[expert] = score_of(logits[expert], task.score, softmax);
  gpu::block_barrier();  // the scores are stored
  for (uint32_t slot = gpu::thread_index(); slot < task.top_k; slot += gpu::block_threads())
    memory.chosen[slot] = memory.scores[task.ids[row * task.top_k + slot] = experts[slot]];
  gpu::block_barrier();  // the chosen scores are stored
}

/// Chooses a row's experts. Call with every thread of the block.
__device__ __forceinline__ void choose_experts(const RouteTask& task, const RoutePlan& plan, const RouteMemory& memory,
                                               const Softmax& softmax, float* logits, uint32_t* ids) {
  for (uint32_t chunk = gpu::warp_index(); chunk < plan.chunks; chunk += gpu::block_threads() / gpu::kWarpThreads)
    rank_chunk(task, plan, memory, softmax, logits, chunk);
  gpu::block_barrier();  // the candidates are stored
  if (plan.has_groups) strike_groups(task, plan, memory);
  for (uint32_t i = gpu::thread_index(); i < plan.choices; i += gpu::block_threads()) {
    const uint32_t key = memory.candidate.keys[i];
    if (key == 0) continue;
    const uint32_t id = memory.candidate.ids[i];
    const uint32_t slot = rank_among(memory.candidate.keys, plan.choices, key, i);
    if (slot == 0) *memory.has_nan = key == kOrderOfNan ? 1 : 0;
    if (slot >= task.top_k) continue;
    ids[slot] = id;
    memory.chosen[slot] = memory.scores[id];
  }
  gpu::block_barrier();  // the chosen scores are stored
  if (*memory.has_nan != 0) {
    if (gpu::thread_index() == 0) choose_one_by_one(task, plan, memory, ids);
    gpu::block_barrier();  // the new scores are stored
  }
}

/// Routes one row. Call with every thread of the block.
__device__ inline void route_row(const RouteTask& task, const RoutePlan& plan, uint64_t row) {
  const RouteMemory memory = lay_out(task, plan);
  float* logits = task.logits + row * task.experts;
  const Softmax softmax =
      task.score == ScoreFunction::softmax ? find_softmax(logits, task.experts, memory.of_warps) : Softmax{};
  if (task.score == ScoreFunction::softmax) gpu::block_barrier();  // logits have been read
  if (task.by_token.experts != nullptr) {
    take_by_token(task, memory, softmax, logits, row);
  } else {
    choose_experts(task, plan, memory, softmax, logits, task.ids + row * task.top_k);
  }
  for (uint32_t slot = gpu::thread_index(); slot < task.top_k; slot += gpu::block_threads()) {
    float sum = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < task.top_k; ++i)
      sum += memory.chosen[i];
    const float weight = memory.chosen[slot];
    task.weights[row * task.top_k + slot] = (task.normalise ? gpu::divide(weight, sum + 1e-20F) : weight) * task.scale;
  }
}

/// Prefetches the bias, which no launch computes, into the L2 cache, before a launch waits for the previous one.
__device__ __forceinline__ void prefetch_bias(const RouteTask& task) {
  constexpr uint32_t kLine = 128 / sizeof(float);
  if (task.bias == nullptr || gpu::block_index().x != 0) return;
  for (uint32_t i = gpu::thread_index() * kLine; i < task.experts; i += gpu::block_threads() * kLine)
    gpu::prefetch(task.bias + i);
}

/// After a product that wrote logits: the launch's last block to finish routes all rows. Call with every thread of the
/// block, once its shared memory is no longer needed. `counter`: zero, and zero again when the launch has run.
__device__ inline void route_last(const RouteTask& task, uint32_t* counter) {
  auto* is_last = gpu::shared_memory<uint32_t>();  // at of_warps, not written before another barrier
  const RoutePlan plan = plan_route(task);
  gpu::block_barrier();  // all of the block's logits are written
  if (gpu::thread_index() == 0) *is_last = gpu::count_up(counter) == gpu::grid_blocks().x - 1 ? 1 : 0;
  gpu::block_barrier();  // is_last is stored, and other blocks' logits are visible
  if (*is_last == 0) return;
  for (uint64_t row = 0; row < task.rows; ++row) {
    route_row(task, plan, row);
    gpu::block_barrier();  // the memory is free for the next row
  }
  if (gpu::thread_index() == 0) *counter = 0;
}

}  // namespace dspack::kernels::cuda::device
