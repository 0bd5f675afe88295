#include "runtime/budget/speed_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace dspack::runtime {

namespace {

double seconds_at(double rate, uint64_t bytes) {
  return rate > 0 ? static_cast<double>(bytes) / rate : 0;
}

uint64_t copied_layer_bytes(const MemoryPlan& plan) {
  return plan.vram ? plan.vram->layers.streamed_bytes : 0;
}

// Layers that stream are loaded while others compute, if there are two buffers; a layer is read while another one is
// copied to a GPU.
double streaming_seconds(const MemoryPlan& plan, const TierTimes& times, double computing) {
  const double bringing = std::max(seconds_at(times.reads.rate(), plan.layers.streamed_bytes),
                                   seconds_at(times.link.rate(), copied_layer_bytes(plan)));
  const LayerPlan& layers = plan.vram ? plan.vram->layers : plan.layers;
  return layers.buffers > 1 ? std::max(0.0, bringing - computing) : bringing;
}

double share_of(uint64_t slots, uint64_t experts) {
  return experts == 0 ? 1 : std::min(1.0, static_cast<double>(slots) / static_cast<double>(experts));
}

double ways(uint32_t all, uint32_t some) {
  double count = 1;
  for (uint32_t i = 0; i < some; ++i)
    count = count * (all - i) / (i + 1);
  return count;
}

/// Where a token's experts of one layer are.
struct Places {
  uint32_t vram = 0, ram = 0, absent = 0;
  [[nodiscard]] uint32_t misses() const { return ram + absent; }
};

// Seconds of one token without the routed experts.
double fixed_seconds(const SpeedShape& shape, const ComputeTimes& compute) {
  return shape.dense_layers * compute.dense_layer + shape.moe_layers * compute.moe_layer + compute.head;
}

double gpu_expert(const SpeedShape& shape, const ComputeTimes& gpu) {
  return shape.top_k > 0 ? gpu.experts / shape.top_k : 0;
}

// Seconds of the routed experts of one layer, if `moved` of its misses are moved and the others computed by the CPU.
// Absent experts are read first.
double split_seconds(const SpeedShape& shape, const TierTimes& times, double each, const Places& places,
                     uint32_t moved) {
  const uint32_t computed = places.misses() - moved;
  const double share = shape.shares.busiest_of_token;
  const double on_link = moved == 0 ? 0 : std::max(1.0, moved * share);
  const double in_memory = layer_seconds({.hits = places.vram * share * each,
                                          .transfer = times.link.seconds(on_link),
                                          .last = moved > 0 ? each : 0,
                                          .host = computed * times.host_expert});
  if (places.absent == 0) return in_memory;
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  const double last =
      std::min(moved > 0 ? times.link.seconds(1) + each : kImpossible, computed > 0 ? times.host_expert : kImpossible);
  return std::max(in_memory, layer_seconds({.transfer = times.reads.seconds(places.absent), .last = last}));
}

struct Split {
  double seconds = 0;
  uint32_t moved = 0;
};

Split best_split(const SpeedShape& shape, const TierTimes& times, double each, const Places& places, MissMode mode) {
  const uint32_t misses = places.misses();
  Split best{.seconds = std::numeric_limits<double>::infinity(), .moved = 0};
  const uint32_t least = mode == MissMode::move ? misses : 0;
  const uint32_t most = mode == MissMode::compute ? 0 : misses;
  for (uint32_t moved = least; moved <= most; ++moved) {
    const double seconds = split_seconds(shape, times, each, places, moved);
    // Prefers to move: the expert may be wanted again.
    if (seconds <= best.seconds) best = {.seconds = seconds, .moved = moved};
  }
  return best;
}

// The probability that no GPU has more than `most` of a token's experts: top_k! times the coefficient of x^top_k in the
// product over GPUs of the sum over j <= most of (share x)^j / j! (the multinomial distribution).
double chance_of_at_most(const std::vector<double>& shares, uint32_t top_k, uint32_t most) {
  std::vector<double> terms(top_k + 1);
  terms[0] = 1;
  for (const double share : shares) {
    std::vector<double> next(top_k + 1);
    double factor = 1;
    for (uint32_t mine = 0; mine <= most; ++mine) {
      if (mine > 0) factor *= share / mine;
      for (uint32_t before = 0; before + mine <= top_k; ++before)
        next[before + mine] += terms[before] * factor;
    }
    terms = std::move(next);
  }
  double chance = terms[top_k];
  for (uint32_t i = 2; i <= top_k; ++i)
    chance *= i;
  return chance;
}

}  // namespace

GpuShares gpu_shares(const MemoryPlan& plan, uint32_t top_k) {
  if (plan.further.empty() || top_k == 0) return {};
  std::vector<double> shares = {static_cast<double>(plan.vram->slots.value_or(0))};
  for (const VramPlan& card : plan.further)
    shares.push_back(static_cast<double>(card.slots.value_or(0)));
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares)
    share = all > 0 ? share / all : 1.0 / static_cast<double>(shares.size());
  double most = 0;  // expected number of a token's experts on the busiest GPU
  for (uint32_t fewer = 0; fewer < top_k; ++fewer)
    most += 1 - chance_of_at_most(shares, top_k, fewer);
  return {.busiest_of_token = most / top_k, .busiest = std::ranges::max(shares), .further = 1 - shares.front()};
}

double uniform_hit_rate(const MemoryPlan& plan) {
  return share_of(plan.slot_count, plan.experts);
}

double local_hit_rate(const MemoryPlan& plan) {
  const double uniform = uniform_hit_rate(plan);
  if (plan.slot_count < plan.experts_per_token) return uniform;
  return kReusedShare + (1 - kReusedShare) * uniform;
}

DecodeEstimate estimate_decode(const SpeedShape& shape, const MemoryPlan& plan, const ComputeTimes& compute,
                               const ReadTimes& reads, double hit_rate) {
  const TierTimes times{.gpu = compute, .link = {}, .reads = reads};
  DecodeEstimate decode = estimate_tiered_decode(shape, times, {.mode = MissMode::move}, {.vram = hit_rate, .ram = 0});
  decode.vram_hit_rate = 0;
  return with_streamed_layers(decode, shape, plan, times);
}

DecodeEstimate with_streamed_layers(DecodeEstimate decode, const SpeedShape& shape, const MemoryPlan& plan,
                                    const TierTimes& times) {
  decode.seconds += streaming_seconds(plan, times, fixed_seconds(shape, times.gpu));
  decode.bytes += static_cast<double>(plan.layers.streamed_bytes);
  decode.link_bytes += static_cast<double>(copied_layer_bytes(plan));
  return decode;
}

double distinct_experts(const SpeedShape& shape, uint32_t rows) {
  if (shape.experts == 0) return 0;
  const double missed_by_one = 1 - static_cast<double>(shape.top_k) / shape.experts;
  return shape.experts * (1 - std::pow(missed_by_one, rows));
}

PrefillEstimate estimate_prefill(const SpeedShape& shape, const MemoryPlan& plan, const ComputeTimes& compute,
                                 uint32_t measured_rows, const ReadTimes& reads, uint32_t tokens) {
  return estimate_gpu_prefill(shape, plan, {.gpu = compute, .link = {}, .reads = reads}, measured_rows, tokens);
}

TierRates uniform_tier_rates(const MemoryPlan& plan) {
  return tier_rates_at(plan, share_of(plan.vram_slots(), plan.experts));
}

TierRates tier_rates_at(const MemoryPlan& plan, double vram) {
  const uint64_t others = plan.experts - std::min(plan.experts, plan.vram_slots());
  return {.vram = vram, .ram = others == 0 ? 0 : (1 - vram) * share_of(plan.slot_count, others)};
}

TierRates local_tier_rates(const MemoryPlan& plan, const MissOptions& miss) {
  const TierRates uniform = uniform_tier_rates(plan);
  const auto local = [](double rate) { return kReusedShare + (1 - kReusedShare) * rate; };
  if (plan.vram_slots() >= plan.experts_per_token && miss.effective() != MissMode::compute)
    return {.vram = local(uniform.vram), .ram = (1 - kReusedShare) * uniform.ram};
  if (plan.vram_slots() + plan.slot_count < plan.experts_per_token) return uniform;
  return {.vram = uniform.vram, .ram = local(uniform.vram + uniform.ram) - uniform.vram};
}

DecodeEstimate estimate_tiered_decode(const SpeedShape& shape, const TierTimes& times, const MissOptions& miss,
                                      const TierRates& rates) {
  const double each = gpu_expert(shape, times.gpu);
  const double none = std::max(0.0, 1 - rates.vram - rates.ram);
  double seconds = 0;
  double moved = 0;
  double computed = 0;
  for (uint32_t misses = 0; misses <= shape.top_k; ++misses) {
    for (uint32_t absent = 0; absent <= misses; ++absent) {
      const Places places{.vram = shape.top_k - misses, .ram = misses - absent, .absent = absent};
      const double chance = ways(shape.top_k, misses) * ways(misses, absent) * std::pow(rates.vram, places.vram) *
                            std::pow(rates.ram, places.ram) * std::pow(none, absent);
      const Split split = best_split(shape, times, each, places, miss.effective());
      seconds += chance * split.seconds;
      moved += chance * split.moved;
      computed += chance * (misses - split.moved);
    }
  }
  const double layers = shape.moe_layers;
  return {.hit_rate = rates.vram + rates.ram,
          .seconds = fixed_seconds(shape, times.gpu) + layers * seconds,
          .bytes = layers * shape.top_k * none * static_cast<double>(times.reads.expert_bytes),
          .vram_hit_rate = rates.vram,
          .link_bytes = layers * moved * static_cast<double>(times.link.expert_bytes),
          .host_bytes = layers * computed * static_cast<double>(times.link.expert_bytes)};
}

DecodeEstimate estimate_cold_decode(const SpeedShape& shape, const MemoryPlan& plan, const TierTimes& times,
                                    const MissOptions& miss) {
  const bool has_room = plan.vram_slots() >= plan.experts_per_token;
  return estimate_tiered_decode(shape, times,
                                has_room ? MissOptions{.mode = MissMode::move, .is_deterministic = false} : miss, {});
}

PrefillEstimate estimate_gpu_prefill(const SpeedShape& shape, const MemoryPlan& plan, const TierTimes& times,
                                     uint32_t measured_rows, uint32_t tokens) {
  PrefillEstimate estimate{.tokens = tokens};
  const bool holds_all = plan.fills_gpus || (plan.vram && plan.vram->holds_all());
  const double slots_a_layer =
      shape.moe_layers == 0 ? 0 : static_cast<double>(plan.vram_slots()) / static_cast<double>(shape.moe_layers);
  for (uint32_t done = 0; done < tokens;) {
    const uint32_t rows = std::min(plan.rows.chunk, tokens - done);
    const double longer = static_cast<double>(rows) / measured_rows;
    const double distinct = distinct_experts(shape, rows);
    // Earlier experts that are still in memory: in the GPU's as far as there was room, in the host's if all of them
    // have room in both.
    const double before = distinct_experts(shape, done);
    const bool all_fit =
        before * shape.moe_layers <= static_cast<double>(plan.slot_count) + static_cast<double>(plan.vram_slots());
    const double in_vram = holds_all ? 1 : std::min(before, slots_a_layer) / std::max(1U, shape.experts);
    const double in_memory = holds_all ? 1 : std::max(in_vram, all_fit ? before / std::max(1U, shape.experts) : 0);
    const double moved = distinct * (1 - in_vram);
    const double missing = distinct * (1 - in_memory);
    const double computing = longer * times.gpu.experts * shape.shares.busiest;
    const double crossing = rows * shape.shares.further * (1.0 + shape.top_k) * static_cast<double>(shape.row_bytes);
    const double last = moved > 0 ? computing / distinct : 0;
    const double reading = missing > 0 ? times.reads.seconds(missing) + times.link.seconds(1) : 0;
    estimate.experts += missing * shape.moe_layers;
    estimate.link_bytes += moved * shape.moe_layers * static_cast<double>(times.link.expert_bytes);
    if (crossing > 0 && times.link.rate() > 0) estimate.seconds += shape.moe_layers * crossing / times.link.rate();
    const double fixed = longer * (shape.dense_layers * times.gpu.dense_layer + shape.moe_layers * times.gpu.moe_layer);
    estimate.seconds += fixed + streaming_seconds(plan, times, fixed);
    estimate.bytes += static_cast<double>(plan.layers.streamed_bytes);
    estimate.link_bytes += static_cast<double>(copied_layer_bytes(plan));
    estimate.seconds += shape.moe_layers *
                        layer_seconds({.hits = computing - last,
                                       .transfer = std::max(times.link.seconds(moved * shape.shares.busiest), reading),
                                       .last = last});
    done += rows;
  }
  estimate.bytes += estimate.experts * static_cast<double>(times.reads.expert_bytes);
  return estimate;
}

double estimate_loading(const MemoryPlan& plan, const TierTimes& times) {
  if (!plan.vram) return 0;
  const VramPlan& vram = *plan.vram;
  auto bytes = static_cast<double>(vram.head_bytes + vram.mtp_bytes + vram.layers.resident_bytes + vram.expert_bytes);
  for (const VramPlan& card : plan.further)
    bytes += static_cast<double>(card.expert_bytes);
  const double slower = std::min(times.reads.rate(), times.link.rate());
  return slower > 0 ? bytes / slower : 0;
}

}  // namespace dspack::runtime
