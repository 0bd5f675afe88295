#include "runtime/budget/vram_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/experts/device_cache.h"

namespace dspack::runtime {

namespace {

// The driver gives memory in pieces of this size.
constexpr uint64_t kPieceBytes = 2ULL << 20;
// What the driver takes for kernels and launches after the free memory was asked for: so much, and of a small card a
// share.
constexpr uint64_t kDriverBytes = 256ULL << 20;
constexpr uint64_t kDriverShare = 32;
// Activations may take this share of what is left for them and experts: as in memory_plan.cpp.
constexpr uint64_t kDeviceActivationShare = 8;

// Allocations: one for each layer, one for the experts of each layer, and head, MTP module, caches, activations,
// workspace.
uint64_t reserve(const MemoryNeeds& needs, uint64_t card_bytes) {
  constexpr uint64_t kOthers = 12;
  uint64_t allocations = needs.layers.size() + kOthers;
  for (const SlotLayout& layout : needs.layouts)
    allocations += layout.layers.size();
  const uint64_t piece = std::min(kPieceBytes, card_bytes / kDriverShare / std::max<uint64_t>(1, allocations));
  return allocations * piece + std::min(kDriverBytes, card_bytes / kDriverShare);
}

std::optional<uint64_t> limit_of(const VramLimits& limits) {
  if (limits.card_bytes == 0) return limits.asked_bytes;
  return std::min(limits.free_bytes, limits.asked_bytes.value_or(limits.free_bytes));
}

std::string source_of(const VramLimits& limits) {
  std::string free = fmt::format("the memory that is free on {} ({} of {})", limits.device,
                                 size_words(limits.free_bytes), size_words(limits.card_bytes));
  if (!limits.asked_bytes) return free;
  if (limits.card_bytes > 0 && *limits.asked_bytes > limits.free_bytes) return free;
  return fmt::format("--vram {}", size_words(*limits.asked_bytes));
}

Error too_little(const VramPlan& plan, const VramLimits& limits) {
  const std::string module =
      plan.mtp_bytes == 0 ? "" : fmt::format(", {} for the MTP module (--mtp off)", size_words(plan.mtp_bytes));
  return {
      ErrorKind::budget,
      fmt::format(
          "{} is too little for all of the model; it needs at least {} bytes ({}): {} for experts, {} for layers "
          "and output head, {} for the KV cache, {} for activations, {} for workspace, {} in reserve{}. Allow that "
          "much, or shorten the context with --ctx, or halve its cache with --kv-dtype bf16, or use --device cpu",
          source_of(limits), plan.total_bytes(), size_words(plan.total_bytes()), size_words(plan.expert_bytes),
          size_words(saturating_add(plan.layer_bytes, plan.head_bytes)), size_words(plan.kv_bytes),
          size_words(plan.activation_bytes), size_words(plan.workspace_bytes), size_words(plan.reserve_bytes), module)};
}

Error too_little_for_layers(const VramPlan& plan, const VramLimits& limits) {
  const std::string module =
      plan.mtp_bytes == 0 ? "" : fmt::format(", {} for the MTP module (--mtp off)", size_words(plan.mtp_bytes));
  return {ErrorKind::budget,
          fmt::format("{} is too little for what every token needs; it takes at least {} bytes ({}): {} for layers and "
                      "output head, {} for the KV cache, {} for activations, {} for {} experts, {} in reserve{}. Allow "
                      "that much, or shorten the context with --ctx, or halve its cache with --kv-dtype bf16, or use "
                      "--device cpu",
                      source_of(limits), plan.total_bytes(), size_words(plan.total_bytes()),
                      size_words(saturating_add(plan.layer_bytes, plan.head_bytes)), size_words(plan.kv_bytes),
                      size_words(plan.activation_bytes), size_words(plan.expert_bytes),
                      plan.slots == 0U ? "two" : std::to_string(*plan.slots), size_words(plan.reserve_bytes), module)};
}

class TieredPlanner {
 public:
  TieredPlanner(const MemoryNeeds& needs, const VramPlan& plan) : needs_(needs), plan_(plan) {
    for (const SlotLayout& layout : needs.device_layouts)
      experts_ += layout.experts;
    set_slots(0);
  }

  [[nodiscard]] VramPlan& plan() { return plan_; }
  [[nodiscard]] uint64_t experts() const { return experts_; }
  [[nodiscard]] bool fits() const { return !plan_.limit_bytes || plan_.total_bytes() <= *plan_.limit_bytes; }

  void set_slots(uint64_t slots) {
    const std::vector<uint64_t> shares = share_slots(needs_.device_layouts, slots, 0);
    plan_.slots = 0;
    plan_.expert_bytes = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      *plan_.slots += shares[i];
      plan_.expert_bytes =
          saturating_add(plan_.expert_bytes, DeviceCache::bytes_for(needs_.device_layouts[i].slot_bytes, shares[i]));
    }
  }

  /// The longest chunk whose activations stay within their share of what is left, or that is all there is room for.
  void choose_chunk() {
    set_chunk(needs_.longest_chunk);
    if (!plan_.limit_bytes) return;
    const uint64_t always = plan_.total_bytes() - plan_.activation_bytes;
    const uint64_t left = *plan_.limit_bytes - std::min(*plan_.limit_bytes, always);
    while (plan_.max_rows > 1 && plan_.activation_bytes > left / kDeviceActivationShare)
      set_chunk((plan_.max_rows + 1) / 2);
  }

  /// As many slots as there is room for.
  void add_slots() {
    uint64_t low = 0;
    uint64_t high = experts_;
    while (low < high) {
      const uint64_t middle = low + (high - low + 1) / 2;
      set_slots(middle);
      if (fits()) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    for (set_slots(low); !fits() && low > 0;)
      set_slots(--low);
  }

 private:
  void set_chunk(uint32_t rows) {
    plan_.max_rows = rows;
    plan_.activation_bytes = needs_.tiered_activation_bytes(rows);
    if (needs_.workspace_bytes) plan_.workspace_bytes = needs_.workspace_bytes(rows);
  }

  const MemoryNeeds& needs_;
  VramPlan plan_;
  uint64_t experts_ = 0;
};

}  // namespace

uint64_t VramPlan::total_bytes() const {
  uint64_t total = 0;
  for (const uint64_t part :
       {reserve_bytes, head_bytes, mtp_bytes, kv_bytes, activation_bytes, workspace_bytes, layer_bytes, expert_bytes})
    total = saturating_add(total, part);
  return total;
}

namespace {

VramPlan without_experts(const MemoryNeeds& needs, const VramLimits& limits) {
  VramPlan plan{.card_bytes = limits.card_bytes,
                .free_bytes = limits.free_bytes,
                .limit_bytes = limit_of(limits),
                .reserve_bytes = reserve(needs, limits.card_bytes),
                .head_bytes = needs.head_bytes,
                .mtp_bytes = needs.mtp_bytes,
                .kv_bytes = needs.kv_bytes};
  for (const MemoryNeeds::Layer& layer : needs.layers)
    plan.layer_bytes = saturating_add(plan.layer_bytes, layer.bytes);
  return plan;
}

}  // namespace

Result<VramPlan> make_vram_plan(const MemoryNeeds& needs, const VramLimits& limits) {
  VramPlan plan = without_experts(needs, limits);
  plan.expert_bytes = needs.resident_expert_bytes;
  for (plan.max_rows = needs.longest_chunk;; plan.max_rows = (plan.max_rows + 1) / 2) {
    plan.activation_bytes = needs.activation_bytes(plan.max_rows);
    if (needs.workspace_bytes) plan.workspace_bytes = needs.workspace_bytes(plan.max_rows);
    if (!plan.limit_bytes || plan.total_bytes() <= *plan.limit_bytes) return plan;
    if (plan.max_rows == 1) return too_little(plan, limits);
  }
}

Result<VramPlan> make_tiered_vram_plan(const MemoryNeeds& needs, const VramLimits& limits,
                                       const std::optional<Amount>& experts) {
  TieredPlanner planner(needs, without_experts(needs, limits));
  if (experts) planner.set_slots(std::min(experts->of(planner.experts()), planner.experts()));
  planner.choose_chunk();
  if (!planner.fits()) return too_little_for_layers(planner.plan(), limits);
  if (!experts) planner.add_slots();
  return planner.plan();
}

format::Json to_json(const VramPlan& plan) {
  return {{"card", plan.card_bytes},
          {"free", plan.free_bytes},
          {"limit", plan.limit_bytes ? format::Json(*plan.limit_bytes) : format::Json()},
          {"total", plan.total_bytes()},
          {"bytes",
           {{"reserve", plan.reserve_bytes},
            {"head", plan.head_bytes},
            {"mtp", plan.mtp_bytes},
            {"kv_cache", plan.kv_bytes},
            {"activations", plan.activation_bytes},
            {"workspace", plan.workspace_bytes},
            {"layers", plan.layer_bytes},
            {"experts", plan.expert_bytes}}},
          {"slots", plan.slots ? format::Json(*plan.slots) : format::Json()}};
}

}  // namespace dspack::runtime
