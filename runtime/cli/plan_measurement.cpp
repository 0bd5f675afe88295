#include "runtime/cli/plan_measurement.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/cli/build_facts.h"
#include "runtime/budget/core_share.h"

namespace dspack::runtime {
namespace {

constexpr double kReadSeconds = 0.5;
constexpr double kLinkSeconds = 0.2;
// Most rows for measuring a prompt's compute. A GPU's time hardly grows with rows at first, so it gets more, as long as
// a layer would take at most kTrialTurnSeconds even if its time did grow.
constexpr uint32_t kTrialRows = 64;
constexpr uint32_t kGpuTrialRows = 256;
constexpr uint32_t kLeastTrialRows = 4;
constexpr double kTrialTurnSeconds = 0.1;

SpeedShape speed_shape(const ModelConfig& config, const format::LayerMap& layers, const MemoryPlan& memory) {
  SpeedShape shape{.dense_layers = 0,
                   .moe_layers = 0,
                   .top_k = config.top_k,
                   .experts = config.experts,
                   .shares = gpu_shares(memory, config.top_k),
                   .row_bytes = uint64_t{config.hidden} * sizeof(float)};
  for (const LayerId layer : layers)
    ++(config.is_moe(layer) ? shape.moe_layers : shape.dense_layers);
  return shape;
}

/// Measures one run's operations.
class Measurement {
 public:
  Measurement(ChosenDevice& chosen, CheckpointAccess& access, const PlanOptions& options, RememberedTimes& remembered,
              Outlook& outlook, const std::stop_token& stop)
      : chosen_(chosen),
        options_(options),
        remembered_(remembered),
        outlook_(outlook),
        stop_(stop),
        memory_(outlook.plan.memory),
        context_{.device = chosen.device(),
                 .queue = chosen.queue(),
                 .access = access,
                 .quantization = outlook.config.quantization},
        prompt_(std::min(options.prompt_tokens, outlook.plan.model.context)) {}

  Result<void> run() {
    TRY(find_identity());
    const uint32_t last = outlook_.plan.model.context - 1;
    TRY_ASSIGN(outlook_.times.gpu, compute(1, std::min(prompt_, last)));
    // A supposed device costs no time: use the longest chunk.
    const uint32_t rows = std::min({prompt_, memory_.rows.chunk, is_supposed() ? UINT32_MAX : trial_rows()});
    TRY_ASSIGN(const ComputeTimes of_prompt, compute(rows, 0));
    if (outlook_.shape.moe_layers > 0) TRY(time_ways());
    switch (outlook_.placement()) {
      case ExpertPlacement::streamed: expect_on_host(of_prompt, rows); break;
      case ExpertPlacement::resident: expect_on_gpu(of_prompt, rows); break;
      case ExpertPlacement::tiered:
        outlook_.plan.memory.fills_gpus ? expect_on_gpu(of_prompt, rows) : expect_on_tiers(of_prompt, rows);
        break;
    }
    return {};
  }

 private:
  [[nodiscard]] TrialPass pass(uint32_t rows, uint32_t position) const {
    TrialPass pass{.rows = rows, .position = position, .has_head = rows == 1};
    // As in the model: a resident pass is recorded if possible; tiers wait for each router's choice.
    if (outlook_.placement() == ExpertPlacement::resident)
      pass.timing.pace = rows <= kMaxRecordedRows ? Pace::recorded : Pace::enqueued;
    if (memory_.vram && !outlook_.plan.needs.device_layouts.empty()) {
      const uint64_t largest =
          std::ranges::max(outlook_.plan.needs.device_layouts, {}, &SlotLayout::slot_bytes).slot_bytes;
      pass.most_experts = std::max<uint64_t>(1, memory_.vram->expert_bytes / std::max<uint64_t>(1, largest));
    }
    return pass;
  }

  [[nodiscard]] uint32_t trial_rows() const {
    if (!chosen_.is_gpu()) return kTrialRows;
    const ComputeTimes& token = outlook_.times.gpu;
    const double longest = std::max({token.dense_layer, token.moe_layer, token.experts});
    const double rows = longest > 0 ? kTrialTurnSeconds / longest : kGpuTrialRows;
    return static_cast<uint32_t>(std::clamp<double>(rows, kLeastTrialRows, kGpuTrialRows));
  }

  /// Whether the computing device is only supposed.
  [[nodiscard]] bool is_supposed() const { return !options_.what_if.gpu_memory.empty(); }

  Result<ComputeTimes> compute(uint32_t rows, uint32_t position) {
    if (is_supposed()) {
      const auto& given = options_.what_if.rates.gpu;
      outlook_.compute_origin = given ? RateOrigin::given : RateOrigin::assumed;
      return compute_at(given.value_or(kAssumedGpuRate), outlook_.plan.needs, outlook_.config, outlook_.shape, rows);
    }
    const auto& given = options_.what_if.rates.memory;
    if (given && rows == 1 && !chosen_.is_gpu()) {
      outlook_.host_origin = RateOrigin::given;
      return compute_at(*given, outlook_.plan.needs, outlook_.config, outlook_.shape, rows);
    }
    const TrialPass trial = pass(rows, position);
    return remembered<ComputeTimes>(
        fmt::format("compute {} {} {} {}", rows, position, trial.most_experts, static_cast<int>(trial.timing.pace)),
        [&] { return time_compute(context_, outlook_.config, outlook_.plan.model, trial, stop_); });
  }

  /// Everything that the trials' times depend on, but for the trial itself.
  Result<void> find_identity() {
    constexpr uint64_t kMaxNameBytes = 256;
    const ModelOptions& model = outlook_.plan.model;
    const format::Checkpoint& catalogue = context_.access.catalogue();
    TRY_ASSIGN(const std::string config,
               context_.access.files().read_text("config.json", format::kConfigDocument.bytes, stop_));
    const auto host = format::read_system_text("/proc/sys/kernel/hostname", kMaxNameBytes);
    format::Sha256 sha;
    const auto add = [&sha](std::string_view text) { sha.update(format::as_bytes(text)); };
    add(fmt::format("times 1\n{}\n{}\n{}\n{}\n", format::source_and_compiler(), host ? *host : "",
                    chosen_.description(), kernels::to_string(chosen_.precision())));
    add(fmt::format("{}\n{}\n{}\n", options_.folder, config, format::to_string(model.layer_map)));
    add(fmt::format("{} {} {}\n", model.wave_rows, to_string(model.kv_dtype), to_string(model.index_dtype)));
    for (const format::TensorEntry& tensor : catalogue.tensors())
      add(fmt::format("{} {} [{}]\n", tensor.name, to_string(tensor.dtype), fmt::join(tensor.shape, ",")));
    identity_ = sha.finish();
    return {};
  }

  /// The times of an earlier trial, or of one that is made now. A trial that got much less of the cores than it wanted
  /// is not remembered.
  template <class T>
  Result<T> remembered(const std::string& what, const std::function<Result<T>()>& measure) {
    const format::Digest key = format::sha256(format::to_hex(identity_) + " " + what);
    if (!options_.measure) {
      const auto values = remembered_.find(key);
      if (const auto times = values ? from_values<T>(*values) : std::nullopt) return *times;
    }
    const CoreShare cores;
    TRY_ASSIGN(T times, measure());
    const auto share = chosen_.is_gpu() ? std::nullopt : cores.so_far();
    if (share) outlook_.core_share = std::min(*share, outlook_.core_share.value_or(1));
    if (share.value_or(1) >= options_.least_share / 100) remembered_.put(key, to_values(times));
    return times;
  }

  /// Measures how experts reach the device that computes them, and the CPU's time for them.
  Result<void> time_ways() {
    TierTimes& times = outlook_.times;
    const uint32_t top_k = outlook_.config.top_k;
    TRY_ASSIGN(times.reads, reads());
    if (!chosen_.is_gpu()) return {};
    TRY_ASSIGN(times.link, link());
    if (outlook_.placement() != ExpertPlacement::tiered) return {};
    if (const auto& given = options_.what_if.rates.memory) {
      outlook_.host_origin = RateOrigin::given;
      times.host_expert = static_cast<double>(times.link.expert_bytes) / static_cast<double>(*given);
      return {};
    }
    const auto queue = chosen_.host().make_queue();
    const LoadContext on_host{
        .device = chosen_.host(), .queue = *queue, .access = context_.access, .quantization = context_.quantization};
    TRY_ASSIGN(const ComputeTimes of_host, remembered<ComputeTimes>("experts of the host", [&] {
                 return time_experts(on_host, outlook_.config, outlook_.plan.model, {.rows = 1, .position = 0}, stop_);
               }));
    times.host_expert = of_host.experts / top_k;
    return {};
  }

  Result<ReadTimes> reads() {
    const SupposedRates& rates = options_.what_if.rates;
    const auto& given = rates.network ? rates.network : rates.disk;
    const format::Checkpoint& catalogue = context_.access.catalogue();
    if (!given && !outlook_.sizes_are_computed) {
      const auto measure = [&] {
        return time_reads(chosen_.host(), context_.access.weights(), expert_shape(outlook_.config),
                          outlook_.plan.model.layer_map, outlook_.config.top_k, kReadSeconds, stop_);
      };
      // A network's rate changes, and what a trial fetches is kept.
      if (!context_.access.files().is_local()) return measure();
      return remembered<ReadTimes>(
          fmt::format("reads {} {}", to_string(options_.load.io), options_.load.verify ? "verified" : ""), measure);
    }
    outlook_.read_origin = given ? RateOrigin::given : RateOrigin::assumed;
    if (catalogue.experts().empty()) return Error{ErrorKind::not_found, "the checkpoint holds no routed expert"};
    uint64_t bytes = 0;
    for (const format::Extent& extent : catalogue.expert_extents(catalogue.experts().begin()->first))
      bytes += extent.range.size();
    return reads_at(given.value_or(kAssumedDiskRate), bytes, outlook_.config.top_k, options_.what_if.medium());
  }

  Result<LinkTimes> link() {
    const DeviceExperts experts{.shape = expert_shape(outlook_.config),
                                .experts = outlook_.config.experts,
                                .layers = outlook_.plan.expert_layers};
    const auto& given = options_.what_if.rates.link;
    if (!given && !is_supposed()) {
      return remembered<LinkTimes>("link", [&] {
        return time_link(chosen_.device(), context_.access.catalogue(), experts, outlook_.config.top_k, kLinkSeconds,
                         stop_);
      });
    }
    outlook_.link_origin = given ? RateOrigin::given : RateOrigin::assumed;
    TRY_ASSIGN(const TrialExpert expert, find_trial_expert(context_.access.catalogue(), experts));
    return link_at(given.value_or(kAssumedLinkRate), expert.slot.slot_bytes, outlook_.config.top_k);
  }

  void expect_on_host(const ComputeTimes& of_prompt, uint32_t rows) {
    const TierTimes& times = outlook_.times;
    const auto decode = [&](double rate) {
      outlook_.decodes.push_back(estimate_decode(outlook_.shape, memory_, times.gpu, times.reads, rate));
    };
    decode(memory_.experts == 0 ? 1 : 0);
    if (options_.hit_rate) {
      decode(*options_.hit_rate / 100);
    } else {
      decode(uniform_hit_rate(memory_));
      decode(local_hit_rate(memory_));
    }
    outlook_.prefill = estimate_prefill(outlook_.shape, memory_, of_prompt, rows, times.reads, prompt_);
  }

  void expect_on_gpu(const ComputeTimes& of_prompt, uint32_t rows) {
    expect_token(estimate_tiered_decode(outlook_.shape, outlook_.times, {}, {.vram = 1, .ram = 0}));
    if (outlook_.shape.moe_layers > 0) outlook_.loading_seconds = estimate_loading(memory_, outlook_.times);
    expect_prompt(of_prompt, rows);
  }

  void expect_on_tiers(const ComputeTimes& of_prompt, uint32_t rows) {
    const MissOptions& miss = options_.load.device.miss;
    const TierTimes& times = outlook_.times;
    expect_token(estimate_cold_decode(outlook_.shape, memory_, times, miss));
    const auto decode = [&](const TierRates& rates) {
      expect_token(estimate_tiered_decode(outlook_.shape, times, miss, rates));
    };
    if (options_.hit_rate) {
      decode(tier_rates_at(memory_, *options_.hit_rate / 100));
    } else {
      decode(uniform_tier_rates(memory_));
      decode(local_tier_rates(memory_, miss));
    }
    expect_prompt(of_prompt, rows);
  }

  /// If a GPU computes.
  void expect_token(const DecodeEstimate& estimate) {
    outlook_.decodes.push_back(with_streamed_layers(estimate, outlook_.shape, memory_, outlook_.times));
  }

  void expect_prompt(const ComputeTimes& of_prompt, uint32_t rows) {
    TierTimes times = outlook_.times;
    times.gpu = of_prompt;
    outlook_.prefill = estimate_gpu_prefill(outlook_.shape, memory_, times, rows, prompt_);
  }

  ChosenDevice& chosen_;
  const PlanOptions& options_;
  RememberedTimes& remembered_;
  format::Digest identity_{};
  Outlook& outlook_;
  const std::stop_token& stop_;
  const MemoryPlan& memory_;
  LoadContext context_;
  uint32_t prompt_;
};

}  // namespace

Result<void> measure_outlook(ChosenDevice& chosen, CheckpointAccess& access, const PlanOptions& options,
                             RememberedTimes& remembered, Outlook& outlook, const std::stop_token& stop) {
  outlook.shape = speed_shape(outlook.config, outlook.plan.model.layer_map, outlook.plan.memory);
  return Measurement(chosen, access, options, remembered, outlook, stop).run();
}

}  // namespace dspack::runtime
