#include "runtime/budget/vram_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/checked.h"
#include "format/base/size_text.h"
#include "runtime/budget/memory_plan.h"

namespace dspack::runtime {

namespace {

// The driver gives memory in pieces of this size.
constexpr uint64_t kPieceBytes = 2ULL << 20;
// What the driver takes for kernels and launches after the free memory was asked for: so much, and of a small card a
// share.
constexpr uint64_t kDriverBytes = 256ULL << 20;
constexpr uint64_t kDriverShare = 32;

// A sum that stays at the largest number instead of wrapping: such a need fits nowhere.
uint64_t sum(uint64_t a, uint64_t b) {
  return checked_add(a, b).value_or(UINT64_MAX);
}

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
          "much, "
          "or shorten the context with --ctx, or halve its cache with --kv-dtype bf16, or use --device cpu",
          source_of(limits), plan.total_bytes(), size_words(plan.total_bytes()), size_words(plan.expert_bytes),
          size_words(sum(plan.layer_bytes, plan.head_bytes)), size_words(plan.kv_bytes),
          size_words(plan.activation_bytes), size_words(plan.workspace_bytes), size_words(plan.reserve_bytes), module)};
}

}  // namespace

uint64_t VramPlan::total_bytes() const {
  uint64_t total = 0;
  for (const uint64_t part :
       {reserve_bytes, head_bytes, mtp_bytes, kv_bytes, activation_bytes, workspace_bytes, layer_bytes, expert_bytes})
    total = sum(total, part);
  return total;
}

Result<VramPlan> make_vram_plan(const MemoryNeeds& needs, const VramLimits& limits) {
  VramPlan plan{.card_bytes = limits.card_bytes,
                .free_bytes = limits.free_bytes,
                .limit_bytes = limit_of(limits),
                .reserve_bytes = reserve(needs, limits.card_bytes),
                .head_bytes = needs.head_bytes,
                .mtp_bytes = needs.mtp_bytes,
                .kv_bytes = needs.kv_bytes,
                .expert_bytes = needs.resident_expert_bytes};
  for (const MemoryNeeds::Layer& layer : needs.layers)
    plan.layer_bytes = sum(plan.layer_bytes, layer.bytes);
  for (plan.max_rows = needs.longest_chunk;; plan.max_rows = (plan.max_rows + 1) / 2) {
    plan.activation_bytes = needs.activation_bytes(plan.max_rows);
    if (needs.workspace_bytes) plan.workspace_bytes = needs.workspace_bytes(plan.max_rows);
    if (!plan.limit_bytes || plan.total_bytes() <= *plan.limit_bytes) return plan;
    if (plan.max_rows == 1) return too_little(plan, limits);
  }
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
            {"experts", plan.expert_bytes}}}};
}

}  // namespace dspack::runtime
