#include "runtime/budget/gpu_memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "runtime/experts/device_cache.h"

namespace dspack::runtime {

namespace {

uint64_t all_experts(const MemoryNeeds& needs) {
  uint64_t experts = 0;
  for (const SlotLayout& layout : needs.layouts)
    experts += layout.experts;
  return experts;
}

// The GPU holds everything.
Result<MemoryPlan> plan_resident(const MemoryNeeds& needs, const MemoryLimits& limits, const VramLimits& vram) {
  MemoryPlan plan;
  for (const SlotLayout& layout : needs.layouts) {
    plan.slots.push_back(layout.experts);
    plan.token_bytes = std::max(plan.token_bytes, saturating_mul(needs.experts_per_token, layout.slot_bytes));
  }
  plan.experts = all_experts(needs);
  plan.slot_count = plan.experts;
  plan.experts_per_token = needs.experts_per_token;
  TRY_ASSIGN(plan.vram, make_vram_plan(needs, vram));
  plan.rows = plan.vram->rows;
  plan.limit_bytes = limits.bytes;
  plan.process_bytes = needs.process_bytes;
  plan.reserve_bytes = needs.reserve_bytes;
  plan.decompression_bytes = needs.decompression_bytes;
  plan.staging_bytes = needs.staging_bytes;
  if (!limits.bytes || plan.total_bytes() <= *limits.bytes) return plan;
  return Error{
      ErrorKind::budget,
      fmt::format(
          "{} is too little; besides the GPU's memory this run needs at least {} bytes ({}): {} for the process "
          "itself, {} for weights on their way to the GPU. Allow that much",
          limits.source, plan.total_bytes(), size_words(plan.total_bytes()),
          size_words(plan.total_bytes() - plan.staging_bytes), size_words(plan.staging_bytes))};
}

// The GPU holds everything except some experts, or layers that stream; this process holds only those.
Result<MemoryPlan> plan_tiered(const MemoryNeeds& needs, const MemoryLimits& limits, const VramLimits& vram,
                               const GpuExperts& experts, std::span<const VramLimits> others) {
  TRY_ASSIGN(VramPlan of_device,
             needs.layouts.empty() ? make_vram_plan(needs, vram) : make_tiered_vram_plan(needs, vram, experts.vram));
  std::vector<VramPlan> further;
  if (!needs.layouts.empty() && !others.empty()) {
    TRY_ASSIGN(further, make_further_vram_plans(needs, of_device, others, experts.vram));
  }
  MemoryNeeds of_host = needs;
  of_host.layers = among(needs.layers, of_device.layers.streamed);
  of_host.least_buffers = of_device.layers.buffers;
  of_host.head_bytes = of_host.mtp_bytes = of_host.kv_bytes = 0;
  of_host.longest = {};
  of_host.activation_bytes = [bytes = needs.host_scratch_bytes](PassRows) { return bytes; };
  uint64_t held = of_device.slots.value_or(0);
  for (const VramPlan& card : further)
    held += card.slots.value_or(0);
  const bool is_filled = !further.empty() && held == all_experts(needs) && needs.may_be_resident &&
                         (!experts.as_they_come || experts.vram);
  MemoryLimits host_limits = limits;
  if (is_filled && !limits.experts) {  // experts only pass through host memory
    const uint64_t least = least_slots(needs.top_k) * needs.layouts.size();
    host_limits.experts = Amount{.number = std::max(kReaderSlots, least), .percent = {}};
  }
  TRY_ASSIGN(MemoryPlan plan, make_memory_plan(of_host, host_limits));
  plan.fills_gpus = is_filled;
  plan.rows = of_device.rows;
  plan.vram = of_device;
  plan.further = std::move(further);
  return plan;
}

}  // namespace

Result<MemoryPlan> make_gpu_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits, const VramLimits& vram,
                                        const GpuExperts& experts, std::span<const VramLimits> further) {
  const uint64_t all = all_experts(needs);
  const bool are_all_asked = !experts.vram || experts.vram->of(all) >= all;
  const bool is_streamed = experts.as_they_come && !experts.vram;
  if (all == 0) {
    VramLimits without_streaming = vram;
    without_streaming.may_stream = false;
    auto resident = plan_resident(needs, limits, without_streaming);
    return resident || !vram.may_stream ? resident : plan_tiered(needs, limits, vram, experts, {});
  }
  if (!are_all_asked || is_streamed || !needs.may_be_resident)
    return plan_tiered(needs, limits, vram, experts, further);
  auto resident = plan_resident(needs, limits, vram);
  if (resident || (experts.vram && further.empty())) return resident;
  TRY_ASSIGN(MemoryPlan plan, plan_tiered(needs, limits, vram, {}, further));
  if (!experts.vram || plan.vram_slots() == all) return plan;
  return Error{ErrorKind::budget,
               fmt::format("the GPUs have no room for all {} experts together: {} fit. Leave out --vram-experts, then "
                           "they keep what fits",
                           all, plan.vram_slots())};
}

}  // namespace dspack::runtime
