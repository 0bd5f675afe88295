#include "runtime/cli/verbs.h"

#include <algorithm>
#include <chrono>

#include "format/cli/environment.h"
#include "format/cli/output.h"
#include "kernels/supposed_gpu.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"
#include "runtime/cli/plan_measurement.h"
#include "runtime/model/expected_tensors.h"
#include "runtime/model/inventory.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMaxPromptTokens = 1U << 26U;

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
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const format::Path state = format::user_state_folder();
  RememberedTimes remembered(format::posix_file_system(), state.empty() ? state : state / "dspack" / "times",
                             std::chrono::duration_cast<std::chrono::seconds>(now).count());
  TRY(measure_outlook(chosen, *access, options, remembered, outlook, stop));
  outlook.measured_ago = remembered.age();
  if (const auto saved = remembered.save(); !saved) note("what was measured is not kept: " + saved.error().message);
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
      "Memory, disk and link are measured for some seconds, but for what is given, and remembered for later plans of "
      "this model; a machine or a model that is not here is supposed.");
  table.footer(
      "Examples:\n  dsrun plan ./ds-packed --ram 24GB --ctx 8192 --prompt-tokens 500\n"
      "  dsrun plan deepseek-ai/DeepSeek-V3 --config-only --ram 64GB --disk-rate 7GB\n"
      "  dsrun plan ./ds-packed --gpu-memory 24GB --link-rate 25GB\n\nStatus: 0 it fits, 1 it does "
      "not (or something failed), 2 wrong usage.");
  add_folder(table, options.folder);
  table.add("--prompt-tokens", "N", options.prompt_tokens, format::count_between(1U, kMaxPromptTokens),
            "Length of the prompt to expect (default: 128)");
  table.flag("--measure", options.measure, "Measure again what an earlier plan has measured here");
  table.flag("--json", options.json, "As JSON");
  table.dev("hit-rate", "PERCENT", options.hit_rate, format::between(0.0, 100.0),
            "share of a token's experts that memory holds (of a GPU that holds some: its memory), as --stats or dsrun "
            "replay print it (default: two assumptions)");
  table.dev("least-share", "PERCENT", options.least_share, format::between(0.0, 100.0),
            "share of the processor below which what was measured is not remembered (default: 90)");
  add_draft_options(table, options.drafts);
  options.load.device.precision.reset();  // --precision auto
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
    const kernels::CudaOptions cuda{.precision = load.device.precision_on(true), .cublaslt = load.device.cublaslt};
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
