#include "runtime/cli/verbs.h"

#include <algorithm>

#include "format/cli/output.h"
#include "kernels/supposed_gpu.h"
#include "runtime/budget/core_share.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"
#include "runtime/cli/plan_text.h"
#include "runtime/model/expected_tensors.h"
#include "runtime/model/inventory.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMaxPromptTokens = 1U << 26U;
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
  Measurement(ChosenDevice& chosen, CheckpointAccess& access, const PlanOptions& options, Outlook& outlook,
              const std::stop_token& stop)
      : chosen_(chosen),
        options_(options),
        outlook_(outlook),
        stop_(stop),
        memory_(outlook.plan.memory),
        context_{.device = chosen.device(),
                 .queue = chosen.queue(),
                 .access = access,
                 .quantization = outlook.config.quantization},
        prompt_(std::min(options.prompt_tokens, outlook.plan.model.context)) {}

  Result<void> run() {
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
    TrialPass pass{.rows = rows, .position = position};
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
    const CoreShare cores;
    auto times = time_compute(context_, outlook_.config, outlook_.plan.model, pass(rows, position), stop_);
    if (!chosen_.is_gpu()) outlook_.core_share = cores.so_far();
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
    TRY_ASSIGN(const ComputeTimes of_host,
               time_experts(on_host, outlook_.config, outlook_.plan.model, {.rows = 1, .position = 0}, stop_));
    times.host_expert = of_host.experts / top_k;
    return {};
  }

  Result<ReadTimes> reads() {
    const SupposedRates& rates = options_.what_if.rates;
    const auto& given = rates.network ? rates.network : rates.disk;
    const format::Checkpoint& catalogue = context_.access.catalogue();
    if (!given && !outlook_.sizes_are_computed) {
      return time_reads(chosen_.host(), context_.access.weights(), expert_shape(outlook_.config),
                        outlook_.plan.model.layer_map, outlook_.config.top_k, kReadSeconds, stop_);
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
    if (!given && !is_supposed())
      return time_link(chosen_.device(), context_.access.catalogue(), experts, outlook_.config.top_k, kLinkSeconds,
                       stop_);
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
  Outlook& outlook_;
  const std::stop_token& stop_;
  const MemoryPlan& memory_;
  LoadContext context_;
  uint32_t prompt_;
};

/// Fills in `shape` and everything that is measured or expected. Errors: those of the trials.
Result<void> measure(ChosenDevice& chosen, CheckpointAccess& access, const PlanOptions& options, Outlook& outlook,
                     const std::stop_token& stop) {
  outlook.shape = speed_shape(outlook.config, outlook.plan.model.layer_map, outlook.plan.memory);
  return Measurement(chosen, access, options, outlook, stop).run();
}

/// Whether sizes must be computed from config.json: on request, or if a local folder has nothing else. A distant place
/// always has its catalogue read, which a cache may have offline.
Result<bool> has_config_alone(const PlanOptions& options, format::Repository& files, const std::stop_token& stop) {
  if (options.what_if.config_only) return true;
  if (!files.is_local()) return false;
  TRY_ASSIGN(const auto listed, files.list(stop));
  if (!listed) return false;
  return std::ranges::none_of(*listed, [](const format::ListedFile& file) {
    return file.path.ends_with(".safetensors") || file.path.ends_with(".safetensors.index.json") ||
           file.path == format::kManifestPath;
  });
}

Result<void> open_weights(CheckpointAccess& access, ChosenDevice& chosen, const PlanOptions& options, Outlook& outlook,
                          const std::stop_token& stop) {
  TRY(access.open_catalogue(outlook.config.layers, stop));
  outlook.absent = access.absent();
  if (outlook.absent) outlook.absent_from = access.rest_address();
  TRY(refuse_unknown_tensors(access.catalogue(), outlook.config));
  TRY(require_whole_model(access.catalogue(), outlook.config));
  return access.open_weights({.io = options.load.io, .verify = options.load.verify, .device = &chosen.host()}, stop);
}

Result<int> run_plan(const PlanOptions& options, format::Process& process) {
  const std::stop_token stop = process.stop();
  TRY_ASSIGN(const auto access, open_place(options.folder, options.load.remote, stop));
  Outlook outlook;
  TRY_ASSIGN(outlook.config, read_model_config(access->files(), stop));
  TRY_ASSIGN(outlook.sizes_are_computed, has_config_alone(options, access->files(), stop));
  TRY_ASSIGN(ChosenDevice chosen,
             choose_device(options.load.device,
                           {.threads = options.load.threads, .instruction_set = options.load.instruction_set}));
  if (outlook.sizes_are_computed) {
    TRY_ASSIGN(format::Checkpoint expected, expected_tensors(outlook.config));
    access->suppose(std::move(expected), options.what_if.medium());
  } else {
    TRY(open_weights(*access, chosen, options, outlook, stop));
  }
  TRY_ASSIGN(outlook.plan, plan_load(chosen, *access, outlook.config, options.load, stop));
  outlook.device = chosen.description();
  outlook.precision = chosen.precision();
  for (const std::string& passed_over : outlook.config.notes)
    note(passed_over);
  note(chosen.note());
  TRY(measure(chosen, *access, options, outlook, stop));
  if (options.json) {
    format::print_json(to_json(outlook, options).dump(2) + "\n");
    return 0;
  }
  format::print_out(to_text(outlook, options));
  const std::string tight = memory_note(outlook.plan.memory, options.load.policy);
  if (!tight.empty()) format::print_out("note: " + tight + "\n");
  return 0;
}

/// "3GB", or as networks are rated, "1Gbit": in bytes a second.
Result<uint64_t> parse_network_rate(std::string_view text) {
  constexpr std::string_view kBit = "bit";
  constexpr uint64_t kBitsOfAByte = 8;
  if (!text.ends_with(kBit)) return format::parse_some_rate(text);
  TRY_ASSIGN(const uint64_t bits,
             format::parse_some_rate(std::string(text.substr(0, text.size() - kBit.size())) + "B"));
  return std::max<uint64_t>(1, bits / kBitsOfAByte);
}

/// "24GB" or "24GB,16GB"
Result<std::vector<uint64_t>> parse_sizes(std::string_view text) {
  std::vector<uint64_t> sizes;
  while (true) {
    const size_t comma = text.find(',');
    TRY_ASSIGN(sizes.emplace_back(), format::parse_some_size(std::string(text.substr(0, comma))));
    if (comma == std::string_view::npos) return sizes;
    text.remove_prefix(comma + 1);
  }
}

void add_what_if_options(format::OptionTable& table, WhatIf& what_if) {
  table.heading("What if (a number that is given is not measured)");
  table.flag("--config-only", what_if.config_only,
             "Compute all sizes from config.json and read nothing else, as of a folder that holds nothing else");
  auto gpu = table.add("--gpu-memory", "SIZE", what_if.gpu_memory, parse_sizes,
                       "As if there were a GPU of so much memory, as 24GB; or several, as 24GB,24GB");
  table
      .add("--gpu-rate", "RATE", what_if.rates.gpu, format::parse_some_size,
           "Bytes a second of that memory, as its data sheet has it (default: 1TB)")
      .needs(gpu);
  table.add("--memory-rate", "RATE", what_if.rates.memory, format::parse_some_size,
            "Bytes a second at which the CPU reads weights in memory while it speaks, as 200GB; how fast it reads a "
            "prompt is measured here all the same");
  table.add("--link-rate", "RATE", what_if.rates.link, format::parse_some_size,
            "Bytes a second from memory to the GPU, as 25GB");
  auto disk = table.add("--disk-rate", "RATE", what_if.rates.disk, format::parse_some_size,
                        "Bytes a second at which experts are read, as 3GB");
  table
      .add("--network-rate", "RATE", what_if.rates.network, parse_network_rate,
           "As if experts were fetched over a network of this rate, as 100MB or 1Gbit")
      .excludes(disk);
}

void add_plan_options(format::OptionTable& table, PlanOptions& options) {
  table.explain(
      "Predicts, before anything is loaded, whether a model fits, where its weights will be placed and how fast it "
      "will run here. "
      "Memory, disk and link are measured for about two seconds, but for what is given; a machine or a model that is "
      "not here is supposed.");
  table.footer(
      "Examples:\n  dsrun plan ./ds-packed --ram 24GB --ctx 8192 --prompt-tokens 500\n"
      "  dsrun plan deepseek-ai/DeepSeek-V3 --config-only --ram 64GB --disk-rate 7GB\n"
      "  dsrun plan ./ds-packed --gpu-memory 24GB --link-rate 25GB\n\nStatus: 0 it fits, 1 it does "
      "not (or something failed), 2 wrong usage.");
  add_folder(table, options.folder);
  table.add("--prompt-tokens", "N", options.prompt_tokens, format::count_between(1U, kMaxPromptTokens),
            "Length of the prompt to expect (default: 128)");
  table.flag("--json", options.json, "As JSON");
  table.dev("hit-rate", "PERCENT", options.hit_rate, format::between(0.0, 100.0),
            "share of a token's experts that memory holds (of a GPU that holds some: its memory), as --stats or dsrun "
            "replay print it (default: two assumptions)");
  add_draft_options(table, options.drafts);
  add_model_options(table, options.load);
  add_what_if_options(table, options.what_if);
}

}  // namespace

Result<void> PlanOptions::complete() {
  load.speculation = drafts.chosen();
  if (what_if.config_only && load.speculation)
    return invalid("--mtp: what an MTP module takes is not computed; leave it out, or --config-only");
  if (what_if.config_only && !load.remote.absent_from.empty())
    return invalid("--absent-from: with --config-only no place has weights; leave one of them out");
  if (!what_if.gpu_memory.empty()) {
    if (load.device.kind == DeviceKind::cpu) return invalid("--gpu-memory supposes a GPU; leave --device cpu out");
    load.device.kind = DeviceKind::cuda;
    load.device.gpus.resize(what_if.gpu_memory.size());
    const kernels::CudaOptions cuda{.precision = load.device.precision, .cublaslt = load.device.cublaslt};
    load.device.open_gpu = [sizes = what_if.gpu_memory, cuda](size_t place) {
      return kernels::suppose_gpu(sizes[place], cuda);
    };
  }
  return check_model_options(load);
}

format::Verb plan_verb() {
  return format::make_verb("plan", "Predict memory use, placement and speed", add_plan_options, run_plan);
}

}  // namespace dspack::runtime
