// dsrun plan DIR: what a run would take and how fast it would be.
#include <fmt/format.h>

#include <algorithm>

#include "format/base/size_text.h"
#include "format/cli/output.h"
#include "runtime/budget/plan_report.h"
#include "runtime/budget/speed_estimate.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/remote_options.h"
#include "runtime/experts/vram/vram_pool.h"
#include "runtime/generate/load_plan.h"
#include "runtime/model/inventory.h"
#include "runtime/storage/completed_place.h"
#include "runtime/storage/open_storage.h"

namespace dspack::runtime {

namespace {

constexpr double kReadSeconds = 0.5;
// The compute of a prompt is measured with so many rows at most.
constexpr uint32_t kTrialRows = 64;

// What is known in the end.
struct Outlook {
  ModelConfig config;
  LoadPlan plan;
  SpeedShape shape;
  std::string device;
  kernels::Precision precision = kernels::Precision::exact;
  bool is_measured = false;  // what follows
  ComputeTimes decode;
  ReadTimes reads;
  std::vector<DecodeEstimate> decodes;  // cold first, then by what is assumed
  PrefillEstimate prefill;
  std::optional<AbsentWeights> absent;  // of a part of a model
  std::string absent_from;
};

SpeedShape speed_shape(const ModelConfig& config, const format::LayerMap& layers) {
  SpeedShape shape{.dense_layers = 0, .moe_layers = 0, .top_k = config.top_k, .experts = config.experts};
  for (const LayerId layer : layers)
    ++(config.is_moe(layer) ? shape.moe_layers : shape.dense_layers);
  return shape;
}

Result<void> measure(const LoadContext& context, const PlanOptions& options, Outlook& outlook,
                     const std::stop_token& stop) {
  const MemoryPlan& plan = outlook.plan.memory;
  const uint32_t prompt = std::min(options.prompt_tokens, outlook.plan.model.context);
  const uint32_t last = outlook.plan.model.context - 1;
  TRY_ASSIGN(outlook.decode, time_compute(context, outlook.config, outlook.plan.model,
                                          {.rows = 1, .position = std::min(prompt, last)}, stop));
  const uint32_t rows = std::min({prompt, kTrialRows, plan.max_rows});
  TRY_ASSIGN(const ComputeTimes prefill,
             time_compute(context, outlook.config, outlook.plan.model, {.rows = rows, .position = 0}, stop));
  if (outlook.shape.moe_layers > 0) {
    TRY_ASSIGN(outlook.reads, time_reads(context.device, context.files.storage(),
                                         {.hidden = outlook.config.hidden,
                                          .expert_inner = outlook.config.expert_inner,
                                          .fp8_block = outlook.config.fp8_block},
                                         outlook.plan.model.layer_map, outlook.config.top_k, kReadSeconds, stop));
  }
  const auto decode = [&](double rate) {
    return estimate_decode(outlook.shape, plan, outlook.decode, outlook.reads, rate);
  };
  outlook.decodes.push_back(decode(plan.experts == 0 ? 1 : 0));
  if (options.hit_rate) {
    outlook.decodes.push_back(decode(*options.hit_rate / 100));
  } else {
    outlook.decodes.push_back(decode(uniform_hit_rate(plan)));
    outlook.decodes.push_back(decode(local_hit_rate(plan)));
  }
  outlook.prefill = estimate_prefill(outlook.shape, plan, prefill, rows, outlook.reads, prompt);
  outlook.is_measured = true;
  return {};
}

std::string share(uint64_t part, uint64_t whole) {
  return fmt::format("{:.1f} %", whole == 0 ? 100.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string line(std::string_view name, std::string_view size, std::string_view more) {
  return fmt::format("  {:<28} {:>9}{}{}\n", name, size, more.empty() ? "" : "   ", more);
}

std::string of_allowed(uint64_t total, const std::optional<uint64_t>& limit) {
  return limit ? fmt::format("{} of the {} allowed\n", size_words(total), size_words(*limit))
               : size_words(total) + "\n";
}

std::string cache_text(const Outlook& outlook) {
  return fmt::format("{} positions, {}", outlook.plan.model.context, to_string(outlook.plan.model.kv_dtype));
}

// Where a GPU computes.
std::string vram_text(const Outlook& outlook, const VramPlan& vram) {
  const MemoryPlan& plan = outlook.plan.memory;
  std::string text = fmt::format("device: {}\n", outlook.device);
  text += fmt::format("its memory: {}", of_allowed(vram.total_bytes(), vram.limit_bytes));
  text += line("driver, allocation", size_words(vram.reserve_bytes),
               fmt::format("the card has {}, {} free", size_words(vram.card_bytes), size_words(vram.free_bytes)));
  text += line("output head", size_words(vram.head_bytes), "");
  text += line("layers", size_words(vram.layer_bytes), fmt::format("{}", outlook.plan.needs.layers.size()));
  if (vram.mtp_bytes > 0) text += line("MTP module", size_words(vram.mtp_bytes), "");
  text += line("KV cache", size_words(vram.kv_bytes), cache_text(outlook));
  text += line("activations", size_words(vram.activation_bytes), fmt::format("{} tokens at once", vram.max_rows));
  text += line("workspace", size_words(vram.workspace_bytes), "of kernels");
  if (plan.experts > 0) {
    const std::string kept = vram.holds_all()
                                 ? fmt::format("all {}", plan.experts)
                                 : fmt::format("{} of {} ({}), and {} that pass through", *vram.slots, plan.experts,
                                               share(*vram.slots, plan.experts), kVramWindow);
    text +=
        line("experts", size_words(vram.expert_bytes),
             fmt::format("{}; a token goes to {} ({})", kept, plan.experts_per_token, size_words(plan.token_bytes)));
  }
  text += fmt::format("memory: {}", of_allowed(plan.total_bytes(), plan.limit_bytes));
  text += line("process, tokenizer, buffers", size_words(plan.process_bytes + plan.reserve_bytes), "");
  if (plan.decompression_bytes > 0) text += line("decompression", size_words(plan.decompression_bytes), "");
  if (vram.holds_all()) return text + line("weights on their way", size_words(plan.staging_bytes), "");
  text += line("experts that the CPU computes", size_words(plan.activation_bytes), "");
  return text + line("experts", size_words(plan.slot_bytes),
                     fmt::format("{} of {} ({})", plan.slot_count, plan.experts, share(plan.slot_count, plan.experts)));
}

std::string memory_text(const Outlook& outlook) {
  const MemoryPlan& plan = outlook.plan.memory;
  if (plan.vram) return vram_text(outlook, *plan.vram);
  const size_t layers = outlook.plan.needs.layers.size();
  std::string text = fmt::format("memory: {}", of_allowed(plan.total_bytes(), plan.limit_bytes));
  text += line("process, tokenizer, buffers", size_words(plan.process_bytes + plan.reserve_bytes), "");
  if (plan.decompression_bytes > 0) text += line("decompression", size_words(plan.decompression_bytes), "");
  text += line("output head", size_words(plan.head_bytes), "");
  text += line("layers", size_words(plan.resident_layer_bytes),
               fmt::format("{} of {} stay", layers - plan.streamed.size(), layers));
  if (!plan.streamed.empty()) {
    text += line(
        "buffers for layers", size_words(plan.layer_buffer_bytes),
        fmt::format("{} layers, {}, are read in every pass", plan.streamed.size(), size_words(plan.streamed_bytes)));
  }
  if (plan.mtp_bytes > 0) text += line("MTP module", size_words(plan.mtp_bytes), "");
  text += line("KV cache", size_words(plan.kv_bytes), cache_text(outlook));
  text += line("activations", size_words(plan.activation_bytes), fmt::format("{} tokens at once", plan.max_rows));
  if (plan.experts > 0) {
    text +=
        line("experts", size_words(plan.slot_bytes),
             fmt::format("{} of {} ({}); a token goes to {} ({})", plan.slot_count, plan.experts,
                         share(plan.slot_count, plan.experts), plan.experts_per_token, size_words(plan.token_bytes)));
  }
  return text;
}

std::string absent_text(const Outlook& outlook) {
  if (!outlook.absent) return {};
  const AbsentWeights& absent = *outlook.absent;
  return fmt::format("absent: {} experts ({}) and {} other tensors ({}), read from {}\n", absent.experts,
                     size_words(absent.expert_bytes), absent.other_tensors, size_words(absent.other_bytes),
                     outlook.absent_from);
}

std::string_view place_of(const ReadTimes& reads) {
  return reads.tier == StorageTier::network ? "link" : "disk";
}

std::string speed_text(const Outlook& outlook, const PlanOptions& options) {
  if (!outlook.is_measured) return "speed: not estimated for a GPU; run it, and --stats says\n";
  const ReadTimes& reads = outlook.reads;
  std::string text = fmt::format("measured: {}\n", outlook.device);
  const auto rate = [](double bytes, double seconds) {
    return seconds > 0 ? size_words(static_cast<uint64_t>(bytes / seconds)) + "/s" : std::string("-");
  };
  if (outlook.shape.moe_layers > 0) {
    text += line("memory", rate(outlook.decode.expert_bytes * outlook.decode.distinct, outlook.decode.experts),
                 "experts in memory, multiplied with one token");
    text += line(place_of(reads), size_words(static_cast<uint64_t>(reads.rate())) + "/s",
                 fmt::format("{} experts of {} at once; one alone takes {:.2f} ms", reads.count,
                             size_words(reads.expert_bytes), reads.one * 1e3));
  }
  text += "expected:\n";
  const auto decode = [&](std::string_view name, const DecodeEstimate& estimate) {
    text += line(name, fmt::format("{:.3g}/s", estimate.tokens_per_second()),
                 fmt::format("{} read for a token, {:.0f} % of its experts in memory",
                             size_words(static_cast<uint64_t>(estimate.bytes)), 100 * estimate.hit_rate));
  };
  if (outlook.shape.moe_layers > 0) decode("first tokens, nothing there", outlook.decodes[0]);
  if (options.hit_rate) {
    decode("tokens at this hit rate", outlook.decodes[1]);
  } else {
    decode("tokens, uniform routing", outlook.decodes[1]);
    decode("tokens, usual locality", outlook.decodes[2]);
  }
  const PrefillEstimate& prefill = outlook.prefill;
  text +=
      line(fmt::format("a prompt of {} tokens", prefill.tokens), fmt::format("{:.3g} s", prefill.seconds),
           fmt::format("{} read, {:.0f} experts", size_words(static_cast<uint64_t>(prefill.bytes)), prefill.experts));
  return text;
}

void add_speed(const Outlook& outlook, const PlanOptions& options, format::Json& json) {
  format::Json decodes = format::Json::array();
  const std::vector<std::string> names = options.hit_rate ? std::vector<std::string>{"cold", "given"}
                                                          : std::vector<std::string>{"cold", "uniform", "local"};
  for (size_t i = 0; i < names.size(); ++i) {
    const DecodeEstimate& estimate = outlook.decodes[i];
    decodes.push_back({{"assumption", names[i]},
                       {"hit_rate", estimate.hit_rate},
                       {"seconds", estimate.seconds},
                       {"tokens_per_second", estimate.tokens_per_second()},
                       {"bytes", estimate.bytes}});
  }
  const ReadTimes& reads = outlook.reads;
  json["measured"] = {{"dense_layer_seconds", outlook.decode.dense_layer},
                      {"moe_layer_seconds", outlook.decode.moe_layer},
                      {"experts_seconds", outlook.decode.experts},
                      {"head_seconds", outlook.decode.head},
                      {"tier", place_of(reads)},
                      {"read_bytes_per_second", reads.rate()},
                      {"read_one_seconds", reads.one},
                      {"read_several_seconds", reads.several},
                      {"read_several", reads.count},
                      {"expert_bytes", reads.expert_bytes}};
  json["decode"] = std::move(decodes);
  json["prefill"] = {{"tokens", outlook.prefill.tokens},
                     {"seconds", outlook.prefill.seconds},
                     {"bytes", outlook.prefill.bytes},
                     {"experts", outlook.prefill.experts}};
}

format::Json json_of(const Outlook& outlook, const PlanOptions& options) {
  format::Json json = {{"memory", to_json(outlook.plan.memory)},
                       {"context", outlook.plan.model.context},
                       {"device", outlook.device},
                       {"precision", kernels::to_string(outlook.precision)}};
  if (outlook.is_measured) add_speed(outlook, options, json);
  if (const auto& absent = outlook.absent) {
    json["absent"] = {{"experts", absent->experts},
                      {"expert_bytes", absent->expert_bytes},
                      {"other_tensors", absent->other_tensors},
                      {"other_bytes", absent->other_bytes}};
  }
  return json;
}

}  // namespace

Result<int> run_plan(const PlanOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(const auto repository, open_place(options.folder, options.load.remote, stop));
  Outlook outlook;
  TRY_ASSIGN(outlook.config, read_model_config(*repository, stop));
  TRY_ASSIGN(auto checkpoint, open_catalogue(*repository, outlook.config.layers, stop));
  if (auto* place = dynamic_cast<CompletedPlace*>(repository.get())) {
    outlook.absent = place->absent_weights();
    outlook.absent_from = place->rest_address();
  }
  TRY(refuse_unknown_tensors(checkpoint, outlook.config));
  TRY_ASSIGN(ChosenDevice chosen,
             choose_device(options.load.device,
                           {.threads = options.load.threads, .instruction_set = options.load.instruction_set}));
  TRY_ASSIGN(const OpenedStorage opened,
             open_storage(*repository, checkpoint,
                          {.io = options.load.io, .verify = options.load.verify, .device = &chosen.host()}, stop));
  CheckpointFiles files(*opened.storage);
  TRY_ASSIGN(outlook.plan, plan_load(chosen, files, *repository, outlook.config, options.load, stop));
  outlook.shape = speed_shape(outlook.config, outlook.plan.model.layer_map);
  outlook.device = chosen.device().description();
  outlook.precision = chosen.precision();
  note(chosen.note());
  if (!chosen.is_gpu()) {
    const LoadContext context{
        .device = chosen.host(), .queue = chosen.queue(), .files = files, .fp8_block = outlook.config.fp8_block};
    TRY(measure(context, options, outlook, stop));
  }
  if (options.json) {
    format::print_out(json_of(outlook, options).dump(2) + "\n");
    return 0;
  }
  format::print_out(memory_text(outlook) + absent_text(outlook) + speed_text(outlook, options));
  const std::string tight = memory_note(outlook.plan.memory, options.load.policy);
  if (!tight.empty()) format::print_out("note: " + tight + "\n");
  return 0;
}

}  // namespace dspack::runtime
