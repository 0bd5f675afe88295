#include "runtime/budget/memory_plan.h"

#include <fmt/format.h>
#include <algorithm>

#include "format/base/size.h"
#include "runtime/experts/device_cache.h"

namespace dspack::runtime {
namespace {

// Activations may take this share (1/n) of the memory left beside every run's needs: with a longer chunk each expert of
// a prompt is read once, with more slots experts are read less often afterwards.
constexpr uint64_t kActivationShare = 8;
constexpr uint64_t kSlotsOnTheirWay = 2;

uint64_t slot_sum(const std::vector<SlotLayout>& layouts, const std::vector<uint64_t>& slots) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < layouts.size(); ++i)
    bytes = saturating_add(bytes, saturating_mul(slots[i], layouts[i].slot_bytes));
  return bytes;
}

uint64_t total(const std::vector<uint64_t>& slots) {
  uint64_t count = 0;
  for (const uint64_t pool : slots)
    count += pool;
  return count;
}

class Planner {
 public:
  Planner(const MemoryNeeds& needs, const MemoryLimits& limits) : needs_(needs), limits_(limits) {
    uint64_t largest = 0;
    for (const SlotLayout& layout : needs.layouts) {
      plan_.experts += layout.experts;
      largest = std::max(largest, layout.slot_bytes);
    }
    plan_.experts_per_token = needs.experts_per_token;
    plan_.token_bytes = saturating_mul(needs.experts_per_token, largest);
    plan_.limit_bytes = limits.bytes;
    plan_.process_bytes = needs.process_bytes;
    plan_.reserve_bytes = needs.reserve_bytes;
    plan_.decompression_bytes = needs.decompression_bytes;
    plan_.head_bytes = needs.head_bytes;
    plan_.mtp_bytes = needs.mtp_bytes;
    plan_.kv_bytes = needs.kv_bytes;
    set_slots(0);
  }

  Result<MemoryPlan> make() {
    TRY(size_experts());
    choose_rows();
    while (true) {
      plan_.layers = keep_all(needs_.layers);
      if (fits()) break;
      if (limits_.experts && slot_total() > least_) return contradiction();
      if (stream_some_layers()) break;
      if (plan_.rows.chunk == 1) return too_little();
      const uint32_t chunk = (plan_.rows.chunk + 1) / 2;
      set_rows({.chunk = chunk, .wave = std::min(plan_.rows.wave, chunk)});
    }
    add_slots();
    plan_.slot_count = slot_total();
    return plan_;
  }

 private:
  // As requested, but at least the minimum of each layout.
  void set_slots(uint64_t slots) {
    plan_.slots = share_slots(needs_.layouts, slots, least_slots(needs_.top_k));
    plan_.slot_bytes = slot_sum(needs_.layouts, plan_.slots);
    if (slots == 0) least_ = slot_total();
  }

  // --experts fixes the number of slots: it is the minimum and the maximum.
  Result<void> size_experts() {
    if (!limits_.experts || needs_.layouts.empty()) return {};
    const uint64_t wanted = std::min(limits_.experts->of(plan_.experts), plan_.experts);
    if (wanted < least_) {
      return Error{ErrorKind::budget,
                   fmt::format("--experts: {} of {} experts are too few: all of one layer that a token goes to are in "
                               "memory at once, and {} more are on their way; allow at least {}",
                               wanted, plan_.experts, kSlotsOnTheirWay, least_)};
    }
    set_slots(wanted);
    return {};
  }

  void set_rows(PassRows rows) {
    plan_.rows = rows;
    plan_.activation_bytes = needs_.activation_bytes(rows);
  }

  // The most rows whose activations stay within their share; without a limit, the most there are.
  void choose_rows() {
    const uint64_t always = saturating_add(around_the_model(), plan_.kv_bytes);
    const uint64_t left = limits_.bytes ? *limits_.bytes - std::min(*limits_.bytes, always) : 0;
    set_rows(longest_that_fit(needs_.longest, [&](PassRows rows) {
      return !limits_.bytes || needs_.activation_bytes(rows) <= left / kActivationShare;
    }));
  }

  [[nodiscard]] uint64_t around_the_model() const {
    return saturating_add(saturating_add(plan_.process_bytes, plan_.reserve_bytes), plan_.decompression_bytes);
  }

  [[nodiscard]] bool fits() const { return !limits_.bytes || plan_.total_bytes() <= *limits_.bytes; }

  // Streams as few layers as necessary. False: it does not fit even if all stream.
  bool stream_some_layers() {
    const auto streamed = stream_layers(needs_.layers, needs_.least_buffers, [&](const LayerPlan& layers) {
      plan_.layers = layers;
      return fits();
    });
    if (streamed) plan_.layers = *streamed;
    return streamed.has_value();
  }

  // Everything streams, through one buffer, one row at a time, and it still does not fit.
  [[nodiscard]] Error too_little() const {
    const std::string module =
        plan_.mtp_bytes == 0 ? "" : fmt::format(", {} for the MTP module (--mtp off)", size_words(plan_.mtp_bytes));
    return {ErrorKind::budget,
            fmt::format(
                "{} is too little; this run needs at least {} bytes ({}): {} for the process itself, {} for the "
                "KV cache, {} for activations, {} for {} experts, {} for the output head and one layer{}. "
                "Allow that much, or shorten the context with --ctx, or halve its cache with --kv-dtype bf16",
                limits_.source, plan_.total_bytes(), size_words(plan_.total_bytes()), size_words(around_the_model()),
                size_words(plan_.kv_bytes), size_words(plan_.activation_bytes), size_words(plan_.slot_bytes),
                slot_total(), size_words(saturating_add(plan_.head_bytes, plan_.layers.buffer_bytes)), module)};
  }

  [[nodiscard]] Error contradiction() const {
    const uint64_t asked = slot_total();
    const uint64_t needed = plan_.total_bytes();
    const auto without = make_memory_plan(needs_, {.bytes = limits_.bytes, .source = limits_.source, .experts = {}});
    if (!without) return without.error();
    return {ErrorKind::budget,
            fmt::format("--experts and {} contradict each other: with {} experts in memory this run needs {}; there is "
                        "room for {} experts",
                        limits_.source, asked, size_words(needed), without->slot_count)};
  }

  [[nodiscard]] uint64_t slot_total() const { return total(plan_.slots); }

  // The most slots that fit. A larger total may give one layout fewer slots (shares are rounded), hence the last loop.
  void add_slots() {
    if (limits_.experts || needs_.layouts.empty()) return;
    uint64_t low = least_;
    uint64_t high = plan_.experts;
    while (low < high) {
      const uint64_t middle = low + (high - low + 1) / 2;
      set_slots(middle);
      if (fits()) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    for (set_slots(low); !fits() && low > least_;)
      set_slots(--low);
  }

  const MemoryNeeds& needs_;
  const MemoryLimits& limits_;
  MemoryPlan plan_;
  uint64_t least_ = 0;  // total of the minimum slots
};

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

uint64_t MemoryPlan::total_bytes() const {
  uint64_t total = 0;
  for (const uint64_t part : {process_bytes, reserve_bytes, decompression_bytes, head_bytes, mtp_bytes, kv_bytes,
                              activation_bytes, layers.total_bytes(), slot_bytes, staging_bytes})
    total = saturating_add(total, part);
  return total;
}

uint64_t MemoryPlan::vram_slots() const {
  if (!vram) return 0;
  uint64_t count = vram->slots.value_or(experts);
  for (const VramPlan& card : further)
    count += card.slots.value_or(0);
  return count;
}

uint64_t least_slots(uint32_t top_k) {
  return top_k + kSlotsOnTheirWay;
}

Result<MemoryPlan> make_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits) {
  return Planner(needs, limits).make();
}

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

std::string memory_note(const MemoryPlan& plan, std::string_view policy) {
  std::string note;
  if (plan.vram && !plan.vram->layers.streamed.empty()) {
    note = fmt::format("{} of the always-needed layers do not fit on the GPU and are copied there in every pass ({})",
                       plan.vram->layers.streamed.size(), size_words(plan.vram->layers.streamed_bytes));
  }
  if (!plan.layers.streamed.empty()) {
    note += fmt::format("{}{} of the always-needed layers do not fit and are read in every pass ({})",
                        note.empty() ? "" : "; ", plan.layers.streamed.size(), size_words(plan.layers.streamed_bytes));
  }
  const uint64_t held = plan.slot_count + (plan.vram && plan.vram->slots ? plan.vram_slots() : 0);
  if (held < plan.experts_per_token && held < plan.experts) {
    note += fmt::format(
        "{}memory holds {} experts, below one token's {} ({}): least recently used would never hit; "
        "using policy {}",
        note.empty() ? "" : "; ", held, plan.experts_per_token, size_words(plan.token_bytes), policy);
  }
  return note;
}

uint64_t default_limit(uint64_t physical_bytes, uint64_t available_bytes, uint64_t resident_bytes) {
  constexpr uint64_t kShare = 20;            // 5 % of the machine,
  constexpr uint64_t kLeast = 512ULL << 20;  // at least this,
  const uint64_t reserve = std::max(physical_bytes / kShare, kLeast);
  const uint64_t within = available_bytes - std::min(available_bytes, std::min(reserve, available_bytes / 2));
  return saturating_add(within, resident_bytes);  // but never more than half of the available memory
}

format::Json to_json(const MemoryPlan& plan) {
  format::Json json = {{"limit", plan.limit_bytes ? format::Json(*plan.limit_bytes) : format::Json()},
                       {"total", plan.total_bytes()},
                       {"bytes",
                        {{"process", plan.process_bytes},
                         {"reserve", plan.reserve_bytes},
                         {"decompression", plan.decompression_bytes},
                         {"head", plan.head_bytes},
                         {"mtp", plan.mtp_bytes},
                         {"kv_cache", plan.kv_bytes},
                         {"activations", plan.activation_bytes},
                         {"layers", plan.layers.resident_bytes},
                         {"layer_buffers", plan.layers.buffer_bytes},
                         {"slots", plan.slot_bytes},
                         {"staging", plan.staging_bytes}}},
                       {"slots", plan.slot_count},
                       {"experts", plan.experts},
                       {"experts_per_token", plan.experts_per_token},
                       {"token_bytes", plan.token_bytes},
                       {"streamed_layers", ids_of(plan.layers)},
                       {"streamed_bytes", plan.layers.streamed_bytes},
                       {"chunk_rows", plan.rows.chunk},
                       {"wave_rows", plan.rows.wave}};
  if (plan.vram) json["vram"] = to_json(*plan.vram);
  for (const VramPlan& card : plan.further)
    json["further_vram"].push_back(to_json(card));
  return json;
}

}  // namespace dspack::runtime
