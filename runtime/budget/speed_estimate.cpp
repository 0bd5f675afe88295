#include "runtime/budget/speed_estimate.h"

#include <algorithm>
#include <cmath>

#include "runtime/experts/schedule.h"

namespace dspack::runtime {

namespace {

double rate_of_streamed(const MemoryPlan& plan, const ReadTimes& reads) {
  const double rate = reads.rate();
  return rate > 0 ? static_cast<double>(plan.streamed_bytes) / rate : 0;
}

// Layers that stream are read behind the computing, if there are two buffers.
double streaming_seconds(const MemoryPlan& plan, const ReadTimes& reads, double computing) {
  const double reading = rate_of_streamed(plan, reads);
  return plan.layer_buffers > 1 ? std::max(0.0, reading - computing) : reading;
}

// Of the routed experts of one layer of one token, averaged over how many are missing.
double expert_seconds(uint32_t top_k, double each, const ReadTimes& reads, double hit_rate) {
  const double miss_rate = 1 - hit_rate;
  double seconds = 0;
  double ways = 1;  // of choosing `missing` of top_k
  for (uint32_t missing = 0; missing <= top_k; ++missing) {
    const double chance = ways * std::pow(miss_rate, missing) * std::pow(hit_rate, top_k - missing);
    const double last = missing > 0 ? each : 0;
    seconds +=
        chance * layer_seconds({.hits = (top_k - missing) * each, .transfer = reads.seconds(missing), .last = last});
    ways = ways * (top_k - missing) / (missing + 1);
  }
  return seconds;
}

}  // namespace

double uniform_hit_rate(const MemoryPlan& plan) {
  if (plan.experts == 0) return 1;
  return std::min(1.0, static_cast<double>(plan.slot_count) / static_cast<double>(plan.experts));
}

double local_hit_rate(const MemoryPlan& plan) {
  const double uniform = uniform_hit_rate(plan);
  if (plan.slot_count < plan.experts_per_token) return uniform;
  return kReusedShare + (1 - kReusedShare) * uniform;
}

DecodeEstimate estimate_decode(const SpeedShape& shape, const MemoryPlan& plan, const ComputeTimes& compute,
                               const ReadTimes& reads, double hit_rate) {
  const double each = shape.top_k > 0 ? compute.experts / shape.top_k : 0;
  const double fixed = shape.dense_layers * compute.dense_layer + shape.moe_layers * compute.moe_layer + compute.head;
  const double routed = shape.moe_layers * expert_seconds(shape.top_k, each, reads, hit_rate);
  const double missing = double{1} * shape.moe_layers * shape.top_k * (1 - hit_rate);
  return {.hit_rate = hit_rate,
          .seconds = fixed + routed + streaming_seconds(plan, reads, fixed),
          .bytes = missing * static_cast<double>(reads.expert_bytes) + static_cast<double>(plan.streamed_bytes)};
}

double distinct_experts(const SpeedShape& shape, uint32_t rows) {
  if (shape.experts == 0) return 0;
  const double missed_by_one = 1 - static_cast<double>(shape.top_k) / shape.experts;
  return shape.experts * (1 - std::pow(missed_by_one, rows));
}

PrefillEstimate estimate_prefill(const SpeedShape& shape, const MemoryPlan& plan, const ComputeTimes& compute,
                                 uint32_t measured_rows, const ReadTimes& reads, uint32_t tokens) {
  PrefillEstimate estimate{.tokens = tokens};
  for (uint32_t done = 0; done < tokens;) {
    const uint32_t rows = std::min(plan.max_rows, tokens - done);
    const double longer = static_cast<double>(rows) / measured_rows;
    // What the first chunk has read may still be there for the next, if all of it had room.
    const double distinct = distinct_experts(shape, rows);
    const bool all_fit = distinct_experts(shape, done) * shape.moe_layers <= static_cast<double>(plan.slot_count);
    const double known = done == 0 || !all_fit ? 0 : distinct_experts(shape, done) / shape.experts;
    const double missing = distinct * (1 - known);
    const double computing = longer * compute.experts;
    const double each = distinct > 0 ? computing / distinct : 0;
    const double fixed = longer * (shape.dense_layers * compute.dense_layer + shape.moe_layers * compute.moe_layer);
    estimate.experts += missing * shape.moe_layers;
    const double routed = layer_seconds({.hits = computing - each, .transfer = reads.seconds(missing), .last = each});
    estimate.seconds += fixed + shape.moe_layers * routed + streaming_seconds(plan, reads, fixed);
    estimate.bytes += static_cast<double>(plan.streamed_bytes);
    done += rows;
  }
  estimate.bytes += estimate.experts * static_cast<double>(reads.expert_bytes);
  return estimate;
}

}  // namespace dspack::runtime
