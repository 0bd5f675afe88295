#include "runtime/budget/vram_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "format/base/size.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/experts/device_cache.h"
#include "runtime/experts/expert_homes.h"

namespace dspack::runtime {

namespace {

// The driver allocates memory in pieces of this size.
constexpr uint64_t kPieceBytes = 2ULL << 20;
// Memory that the driver takes for kernels and launches after the free memory was queried: this many bytes, or of a
// small card this share.
constexpr uint64_t kDriverBytes = 256ULL << 20;
constexpr uint64_t kDriverShare = 32;
// Activations may take this share (1/n) of the memory left for them and some of the experts,
constexpr uint64_t kChunkShare = 2;
// but this share with longer waves than usual: such a prompt waits for the link, not for products.
constexpr uint64_t kWaveShare = 8;
// The same if layers stream: the rest is for layers that stay.
constexpr uint64_t kStreamedShare = 8;
// Tokens of an answer over which slots are weighed against a longer chunk (TieredPlanner::is_worth).
constexpr double kAnswerTokens = 512;

// Counts one allocation for each layer, one for the experts of each layer, and those of head, MTP module, caches,
// activations and workspace.
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
          size_words(saturating_add(plan.layers.total_bytes(), plan.head_bytes)), size_words(plan.kv_bytes),
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
                      size_words(saturating_add(plan.layers.total_bytes(), plan.head_bytes)), size_words(plan.kv_bytes),
                      size_words(plan.activation_bytes), size_words(plan.expert_bytes),
                      plan.slots == 0U ? "two" : std::to_string(*plan.slots), size_words(plan.reserve_bytes), module)};
}

uint64_t workspace_of(const MemoryNeeds& needs, PassRows rows) {
  return needs.workspace_bytes ? needs.workspace_bytes(rows.wave) : 0;
}

bool fits(const VramPlan& plan) {
  return !plan.limit_bytes || plan.total_bytes() <= *plan.limit_bytes;
}

/// Memory for activations and for what is planned after them.
uint64_t left_beside_activations(const VramPlan& plan) {
  const uint64_t always = plan.total_bytes() - plan.activation_bytes;
  return *plan.limit_bytes - std::min(*plan.limit_bytes, always);
}

/// Streams as few layers as make room, for activations that take at most 1/kStreamedShare of what is left if all layers
/// stream. `set_rows` sets the plan's. False: nothing makes room; the plan is the one that needs least.
bool stream_some_layers(const MemoryNeeds& needs, VramPlan& plan, const std::function<void(PassRows)>& set_rows) {
  const auto all = stream_layers(needs.layers, needs.least_buffers, [&](const LayerPlan& layers) {
    return layers.streamed.size() == needs.layers.size();
  });
  if (!all || !plan.limit_bytes) return false;
  plan.layers = *all;
  set_rows(longest_that_fit(needs.longest, [&](PassRows rows) {
    set_rows(rows);
    return plan.activation_bytes <= left_beside_activations(plan) / kStreamedShare;
  }));
  const auto some = stream_layers(needs.layers, needs.least_buffers, [&](const LayerPlan& layers) {
    plan.layers = layers;
    return fits(plan);
  });
  if (some) plan.layers = *some;
  return some.has_value();
}

void set_slots(const MemoryNeeds& needs, VramPlan& plan, uint64_t slots) {
  const std::vector<uint64_t> shares = share_slots(needs.device_layouts, slots, 0);
  plan.slots = 0;
  plan.expert_bytes = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    *plan.slots += shares[i];
    plan.expert_bytes =
        saturating_add(plan.expert_bytes, DeviceCache::bytes_for(needs.device_layouts[i].slot_bytes, shares[i]));
  }
}

/// Adds slots for at most `experts` experts, as many as fit.
void add_slots(const MemoryNeeds& needs, VramPlan& plan, uint64_t experts) {
  uint64_t low = 0;
  uint64_t high = experts;
  while (low < high) {
    const uint64_t middle = low + (high - low + 1) / 2;
    set_slots(needs, plan, middle);
    if (fits(plan)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  for (set_slots(needs, plan, low); !fits(plan) && low > 0;)
    set_slots(needs, plan, --low);
}

uint64_t all_experts(const MemoryNeeds& needs) {
  uint64_t experts = 0;
  for (const SlotLayout& layout : needs.device_layouts)
    experts += layout.experts;
  return experts;
}

class TieredPlanner {
 public:
  TieredPlanner(const MemoryNeeds& needs, VramPlan plan)
      : needs_(needs), plan_(std::move(plan)), experts_(all_experts(needs)) {
    set_slots(0);
  }

  [[nodiscard]] VramPlan& plan() { return plan_; }
  [[nodiscard]] uint64_t experts() const { return experts_; }
  [[nodiscard]] bool fits() const { return runtime::fits(plan_); }

  void set_slots(uint64_t slots) { runtime::set_slots(needs_, plan_, slots); }

  /// Chooses the most rows whose activations stay within their share of what is left. `leaves_slots`: the rest is for
  /// experts.
  void choose_rows(bool leaves_slots) {
    set_rows(longest_that_fit(needs_.longest, [&](PassRows rows) {
      if (!plan_.limit_bytes) return true;
      set_rows(rows);
      const uint64_t left = left_beside_activations(plan_);
      if (leaves_slots && !is_worth(rows.chunk)) return false;
      return plan_.activation_bytes <= left / (rows.wave > kUsualWave ? kWaveShare : kChunkShare);
    }));
  }

  [[nodiscard]] bool make_layers_stream() {
    return stream_some_layers(needs_, plan_, [this](PassRows rows) { set_rows(rows); });
  }

  void add_slots() { runtime::add_slots(needs_, plan_, experts_); }

 private:
  /// Whether a chunk saves more copies than the slots that one of half its length would leave room for. A prompt of its
  /// length fetches nearly every expert once less; an answer's tokens hit in the slots. V3 with 8,192 rows instead of
  /// 4,096: 14,848 copies saved against 29 slots, which save 470 over 512 tokens.
  [[nodiscard]] bool is_worth(uint32_t chunk) const {
    const auto bytes = [&](uint32_t rows) {
      return needs_.tiered_activation_bytes({.chunk = rows, .wave = std::min(rows, kUsualWave)});
    };
    double largest = 1;
    for (const SlotLayout& layout : needs_.device_layouts)
      largest = std::max(largest, static_cast<double>(layout.slot_bytes));
    const double slots = static_cast<double>(bytes(chunk) - bytes((chunk + 1) / 2)) / largest;
    const auto experts = static_cast<double>(std::max<uint64_t>(experts_, 1));
    return slots * static_cast<double>(needs_.experts_per_token) / experts * kAnswerTokens <= experts;
  }

  void set_rows(PassRows rows) {
    plan_.rows = rows;
    plan_.activation_bytes = needs_.tiered_activation_bytes(rows);
    plan_.workspace_bytes = workspace_of(needs_, rows);
  }

  const MemoryNeeds& needs_;
  VramPlan plan_;
  uint64_t experts_;
};

}  // namespace

uint64_t VramPlan::total_bytes() const {
  uint64_t total = 0;
  for (const uint64_t part : {reserve_bytes, head_bytes, mtp_bytes, kv_bytes, activation_bytes, workspace_bytes,
                              layers.total_bytes(), expert_bytes})
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
                .kv_bytes = needs.kv_bytes,
                .layers = keep_all(needs.layers)};
  return plan;
}

}  // namespace

Result<VramPlan> make_vram_plan(const MemoryNeeds& needs, const VramLimits& limits) {
  VramPlan plan = without_experts(needs, limits);
  plan.expert_bytes = needs.resident_expert_bytes;
  const auto set_rows = [&](PassRows rows) {
    plan.rows = rows;
    plan.activation_bytes = needs.activation_bytes(rows);
    plan.workspace_bytes = workspace_of(needs, rows);
  };
  // All weights are resident, so a chunk longer than a wave saves nothing.
  const uint32_t most = std::min(needs.longest.chunk, needs.longest.wave);
  set_rows(longest_that_fit({.chunk = most, .wave = most}, [&](PassRows rows) {
    set_rows(rows);
    return fits(plan);
  }));
  if (fits(plan)) return plan;
  const bool has_experts = !needs.layouts.empty();
  if (!has_experts && limits.may_stream && stream_some_layers(needs, plan, set_rows)) return plan;
  return too_little(plan, limits);
}

Result<VramPlan> make_tiered_vram_plan(const MemoryNeeds& needs, const VramLimits& limits,
                                       const std::optional<Amount>& experts) {
  TieredPlanner planner(needs, without_experts(needs, limits));
  if (experts) planner.set_slots(std::min(experts->of(planner.experts()), planner.experts()));
  planner.choose_rows(/*leaves_slots=*/!experts);
  if (!planner.fits() && !(limits.may_stream && planner.make_layers_stream()))
    return too_little_for_layers(planner.plan(), limits);
  if (!experts) planner.add_slots();
  return planner.plan();
}

Result<std::vector<VramPlan>> make_further_vram_plans(const MemoryNeeds& needs, VramPlan& first,
                                                      std::span<const VramLimits> further,
                                                      const std::optional<Amount>& experts) {
  const uint64_t all = all_experts(needs);
  std::vector<VramPlan> plans;
  std::vector<uint64_t> room = {*first.slots};
  for (const VramLimits& limits : further) {
    VramPlan plan{.card_bytes = limits.card_bytes,
                  .free_bytes = limits.free_bytes,
                  .limit_bytes = limit_of(limits),
                  .reserve_bytes = reserve(needs, limits.card_bytes),
                  .activation_bytes = needs.further_activation_bytes(first.rows),
                  .workspace_bytes = needs.further_workspace_bytes};
    plan.rows = first.rows;
    set_slots(needs, plan, experts ? std::min(experts->of(all), all) : 0);
    if (!fits(plan)) {
      return Error{ErrorKind::budget,
                   fmt::format("{} is too little for a further GPU's {} experts; it takes at least {} bytes ({}): {} "
                               "for rows of {} tokens, {} for experts, {} in reserve. Allow that much, or leave the "
                               "GPU out of --device",
                               source_of(limits), *plan.slots, plan.total_bytes(), size_words(plan.total_bytes()),
                               size_words(plan.activation_bytes), plan.rows.chunk, size_words(plan.expert_bytes),
                               size_words(plan.reserve_bytes))};
    }
    if (!experts) add_slots(needs, plan, all);
    room.push_back(*plan.slots);
    plans.push_back(std::move(plan));
  }
  const std::vector<uint64_t> slots = level_slots(room, all);
  set_slots(needs, first, slots.front());
  for (size_t i = 0; i < plans.size(); ++i)
    set_slots(needs, plans[i], slots[i + 1]);
  return plans;
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
            {"layers", plan.layers.resident_bytes},
            {"layer_buffers", plan.layers.buffer_bytes},
            {"experts", plan.expert_bytes}}},
          {"streamed_layers", ids_of(plan.layers)},
          {"streamed_bytes", plan.layers.streamed_bytes},
          {"slots", plan.slots ? format::Json(*plan.slots) : format::Json()}};
}

}  // namespace dspack::runtime
