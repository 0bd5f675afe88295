#include "runtime/cli/plan_text.h"

#include <fmt/format.h>

#include "format/base/seconds.h"
#include "format/base/size.h"
#include "format/cli/cache_verb.h"
#include "runtime/budget/memory_plan.h"
#include "runtime/experts/device_cache.h"

namespace dspack::runtime {

namespace {

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
  const ModelOptions& model = outlook.plan.model;
  const std::string text = fmt::format("{} positions, {}", model.context, to_string(model.kv_dtype));
  return model.index_dtype == model.kv_dtype ? text
                                             : fmt::format("{}; index keys {}", text, to_string(model.index_dtype));
}

std::string rows_text(PassRows rows) {
  const std::string chunk = fmt::format("a prompt in chunks of {} tokens", rows.chunk);
  return rows.wave == rows.chunk ? chunk : fmt::format("{}, {} of them at once", chunk, rows.wave);
}

/// `becomes`: treatment of the layers that stream.
std::string layers_text(const LayerPlan& plan, size_t layers, std::string_view becomes) {
  std::string text = line("layers", size_words(plan.resident_bytes),
                          fmt::format("{} of {} stay", layers - plan.streamed.size(), layers));
  if (plan.streamed.empty()) return text;
  return text +
         line("buffers for layers", size_words(plan.buffer_bytes),
              fmt::format("{} layers, {}, are {}", plan.streamed.size(), size_words(plan.streamed_bytes), becomes));
}

// For a GPU that only computes experts.
std::string further_text(const MemoryPlan& plan, const VramPlan& vram) {
  std::string text = fmt::format("a further GPU: {}", of_allowed(vram.total_bytes(), vram.limit_bytes));
  text += line("driver, allocation", size_words(vram.reserve_bytes),
               fmt::format("the card has {}, {} free", size_words(vram.card_bytes), size_words(vram.free_bytes)));
  text += line("activations", size_words(vram.activation_bytes), "of its experts");
  text += line("workspace", size_words(vram.workspace_bytes), "of kernels");
  return text + line("experts", size_words(vram.expert_bytes),
                     fmt::format("{} of {} ({}), and {} that pass through", *vram.slots, plan.experts,
                                 share(*vram.slots, plan.experts), kVramWindow));
}

// For a plan in which a GPU computes.
std::string vram_text(const Outlook& outlook, const VramPlan& vram) {
  const MemoryPlan& plan = outlook.plan.memory;
  std::string text = fmt::format("device: {}\n", outlook.device);
  text += fmt::format("its memory: {}", of_allowed(vram.total_bytes(), vram.limit_bytes));
  text += line("driver, allocation", size_words(vram.reserve_bytes),
               fmt::format("the card has {}, {} free", size_words(vram.card_bytes), size_words(vram.free_bytes)));
  text += line("output head", size_words(vram.head_bytes), "");
  text += layers_text(vram.layers, outlook.plan.needs.layers.size(), "copied there in every pass");
  if (vram.mtp_bytes > 0) text += line("MTP module", size_words(vram.mtp_bytes), "");
  text += line("KV cache", size_words(vram.kv_bytes), cache_text(outlook));
  text += line("activations", size_words(vram.activation_bytes), rows_text(vram.rows));
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
  for (const VramPlan& further : plan.further)
    text += further_text(plan, further);
  text += fmt::format("memory: {}", of_allowed(plan.total_bytes(), plan.limit_bytes));
  text += line("process, tokenizer, buffers", size_words(plan.process_bytes + plan.reserve_bytes), "");
  if (plan.decompression_bytes > 0) text += line("decompression", size_words(plan.decompression_bytes), "");
  if (const size_t copied = vram.layers.streamed.size(); copied > 0)
    text += layers_text(plan.layers, copied, "read in every pass");
  if (vram.holds_all()) return text + line("weights on their way", size_words(plan.staging_bytes), "");
  text += line("experts that the CPU computes", size_words(plan.activation_bytes), "");
  return text + line("experts", size_words(plan.slot_bytes),
                     fmt::format("{} of {} ({})", plan.slot_count, plan.experts, share(plan.slot_count, plan.experts)));
}

std::string memory_text(const Outlook& outlook) {
  const MemoryPlan& plan = outlook.plan.memory;
  if (plan.vram) return vram_text(outlook, *plan.vram);
  std::string text = fmt::format("memory: {}", of_allowed(plan.total_bytes(), plan.limit_bytes));
  text += line("process, tokenizer, buffers", size_words(plan.process_bytes + plan.reserve_bytes), "");
  if (plan.decompression_bytes > 0) text += line("decompression", size_words(plan.decompression_bytes), "");
  text += line("output head", size_words(plan.head_bytes), "");
  text += layers_text(plan.layers, outlook.plan.needs.layers.size(), "read in every pass");
  if (plan.mtp_bytes > 0) text += line("MTP module", size_words(plan.mtp_bytes), "");
  text += line("KV cache", size_words(plan.kv_bytes), cache_text(outlook));
  text += line("activations", size_words(plan.activation_bytes), rows_text(plan.rows));
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
  return reads.medium == Medium::network ? "network" : "disk";
}

std::string rate_words(double bytes_per_second) {
  return bytes_per_second > 0 ? size_words(static_cast<uint64_t>(bytes_per_second)) + "/s" : std::string("-");
}

/// Three digits; above a minute, in words.
std::string seconds_words(double seconds) {
  constexpr double kMinute = 60;
  return seconds < kMinute ? fmt::format("{:.3g} s", seconds) : duration_words(seconds);
}

std::string words(double bytes) {
  return size_words(static_cast<uint64_t>(bytes));
}

bool all_measured(const Outlook& outlook) {
  return outlook.compute_origin == RateOrigin::measured && outlook.link_origin == RateOrigin::measured &&
         outlook.read_origin == RateOrigin::measured && outlook.host_origin == RateOrigin::measured;
}

std::string rates_text(const Outlook& outlook) {
  const auto& [gpu, link, host_expert, reads] = outlook.times;
  const bool is_gpu = outlook.placement() != ExpertPlacement::streamed;
  const bool is_measured = all_measured(outlook);
  // If some rates are not measured, each line names its origin.
  const auto line = [&](std::string_view name, double rate, RateOrigin origin, const std::string& more) {
    return runtime::line(name, rate_words(rate), is_measured ? more : fmt::format("{}; {}", to_string(origin), more));
  };
  std::string text = fmt::format("{}: {}\n", is_measured ? "measured" : "rates", outlook.device);
  if (outlook.core_share)
    text += runtime::line("processor time", fmt::format("{:.0f} %", 100 * *outlook.core_share),
                          "of what its threads wanted");
  if (outlook.measured_ago)
    text += runtime::line("remembered", "", format::age_words(*outlook.measured_ago) + "; --measure measures again");
  if (outlook.shape.moe_layers == 0) return text;
  const auto arrivals = [](uint32_t count, uint64_t bytes, std::string_view how, double one) {
    return fmt::format("{} experts of {} {}; one alone takes {:.2f} ms", count, size_words(bytes), how, one * 1e3);
  };
  text += line("memory", gpu.expert_rate(), is_gpu ? outlook.compute_origin : outlook.host_origin,
               is_gpu ? "experts in the GPU's memory, multiplied with one token"
                      : "experts in memory, multiplied with one token");
  if (is_gpu) {
    text += line("link", link.rate(), outlook.link_origin,
                 arrivals(link.count, link.expert_bytes, "one after the other", link.one));
  }
  if (host_expert > 0) {
    text += line("cpu", static_cast<double>(link.expert_bytes) / host_expert, outlook.host_origin,
                 "experts in the host's memory, multiplied with one token");
  }
  return text + line(place_of(reads), reads.rate(), outlook.read_origin,
                     arrivals(reads.count, reads.expert_bytes, "at once", reads.one));
}

// The cost of a token at these hit rates.
std::string decode_cost(const Outlook& outlook, const DecodeEstimate& estimate) {
  if (outlook.are_all_on_gpus())
    return outlook.plan.memory.fills_gpus ? "all of its experts on the GPUs" : "all of its experts on the GPU";
  const double in_memory = 100 * estimate.hit_rate;
  if (outlook.placement() == ExpertPlacement::streamed)
    return fmt::format("{} read for a token, {:.0f} % of its experts in memory", words(estimate.bytes), in_memory);
  return fmt::format(
      "for a token {} copied, {} computed by the CPU, {} read; {:.0f} % of its experts on the GPU{}, "
      "{:.0f} % in memory",
      words(estimate.link_bytes), words(estimate.host_bytes), words(estimate.bytes), 100 * estimate.vram_hit_rate,
      outlook.plan.memory.further.empty() ? "" : "s", in_memory - 100 * estimate.vram_hit_rate);
}

std::string speed_text(const Outlook& outlook, const PlanOptions& options) {
  std::string text = rates_text(outlook);
  text += fmt::format("expected, {}:\n", kernels::to_string(outlook.precision));
  const auto decode = [&](std::string_view name, size_t number) {
    const DecodeEstimate& estimate = outlook.decodes[number];
    text += line(name, fmt::format("{:.3g}/s", estimate.tokens_per_second()), decode_cost(outlook, estimate));
  };
  if (outlook.are_all_on_gpus()) {
    if (outlook.loading_seconds > 0)
      text += line("loading", seconds_words(outlook.loading_seconds), "before the first token");
    decode("tokens", 0);
  } else {
    if (outlook.shape.moe_layers > 0) decode("first tokens, empty slots", 0);
    if (options.hit_rate) {
      decode("tokens at this hit rate", 1);
    } else {
      decode("tokens, uniform routing", 1);
      decode("tokens, usual locality", 2);
    }
  }
  const PrefillEstimate& prefill = outlook.prefill;
  std::string cost = fmt::format("{} read, {:.0f} experts", words(prefill.bytes), prefill.experts);
  if (outlook.placement() == ExpertPlacement::tiered) cost += fmt::format("; {} copied", words(prefill.link_bytes));
  if (outlook.are_all_on_gpus()) cost.clear();
  if (outlook.compute_origin != RateOrigin::measured)
    cost += fmt::format("{}at least: what arithmetic takes is not known", cost.empty() ? "" : "; ");
  return text + line(fmt::format("a prompt of {} tokens", prefill.tokens), seconds_words(prefill.seconds), cost);
}

std::vector<std::string_view> assumptions(const Outlook& outlook, const PlanOptions& options) {
  if (outlook.are_all_on_gpus()) return {"resident"};
  if (options.hit_rate) return {"cold", "given"};
  return {"cold", "uniform", "local"};
}

format::Json decodes_json(const Outlook& outlook, const PlanOptions& options) {
  format::Json decodes = format::Json::array();
  for (const std::string_view name : assumptions(outlook, options)) {
    const DecodeEstimate& estimate = outlook.decodes[decodes.size()];
    decodes.push_back({{"assumption", name},
                       {"hit_rate", estimate.hit_rate},
                       {"seconds", estimate.seconds},
                       {"tokens_per_second", estimate.tokens_per_second()},
                       {"bytes", estimate.bytes}});
    if (outlook.placement() != ExpertPlacement::tiered) continue;
    decodes.back()["vram_hit_rate"] = estimate.vram_hit_rate;
    decodes.back()["link_bytes"] = estimate.link_bytes;
    decodes.back()["cpu_bytes"] = estimate.host_bytes;
  }
  return decodes;
}

format::Json measured_json(const Outlook& outlook) {
  const auto& [gpu, link, host_expert, reads] = outlook.times;
  format::Json json = {{"dense_layer_seconds", gpu.dense_layer},
                       {"moe_layer_seconds", gpu.moe_layer},
                       {"experts_seconds", gpu.experts},
                       {"memory_bytes_per_second", gpu.expert_rate()},
                       {"head_seconds", gpu.head},
                       {"tier", reads.medium == Medium::network ? "link" : "disk"},
                       {"read_bytes_per_second", reads.rate()},
                       {"read_one_seconds", reads.one},
                       {"read_several_seconds", reads.several},
                       {"read_several", reads.count},
                       {"expert_bytes", reads.expert_bytes}};
  if (outlook.placement() == ExpertPlacement::streamed) return json;
  json["link"] = {{"bytes_per_second", link.rate()},
                  {"one_seconds", link.one},
                  {"several_seconds", link.several},
                  {"several", link.count},
                  {"expert_bytes", link.expert_bytes}};
  if (host_expert > 0) json["cpu_expert_seconds"] = host_expert;
  return json;
}

}  // namespace

std::string to_text(const Outlook& outlook, const PlanOptions& options) {
  const std::string_view sizes =
      outlook.sizes_are_computed ? "sizes: computed from config.json; the weights themselves were not looked at\n" : "";
  return std::string(sizes) + memory_text(outlook) + absent_text(outlook) + speed_text(outlook, options);
}

format::Json to_json(const Outlook& outlook, const PlanOptions& options) {
  format::Json json = {{"memory", to_json(outlook.plan.memory)},
                       {"context", outlook.plan.model.context},
                       {"device", outlook.device},
                       {"precision", kernels::to_string(outlook.precision)},
                       {"sizes", outlook.sizes_are_computed ? "computed" : "catalogue"},
                       {"measured", measured_json(outlook)},
                       {"origin",
                        {{"memory", to_string(outlook.plan.memory.vram ? outlook.compute_origin : outlook.host_origin)},
                         {"cpu", to_string(outlook.host_origin)},
                         {"link", to_string(outlook.link_origin)},
                         {"read", to_string(outlook.read_origin)}}},
                       {"decode", decodes_json(outlook, options)},
                       {"prefill",
                        {{"tokens", outlook.prefill.tokens},
                         {"seconds", outlook.prefill.seconds},
                         {"bytes", outlook.prefill.bytes},
                         {"experts", outlook.prefill.experts}}}};
  if (outlook.core_share) json["core_share"] = *outlook.core_share;
  if (outlook.measured_ago) json["measured_seconds_ago"] = *outlook.measured_ago;
  if (outlook.are_all_on_gpus()) json["loading_seconds"] = outlook.loading_seconds;
  if (outlook.placement() == ExpertPlacement::tiered) json["prefill"]["link_bytes"] = outlook.prefill.link_bytes;
  if (const auto& absent = outlook.absent) {
    json["absent"] = {{"experts", absent->experts},
                      {"expert_bytes", absent->expert_bytes},
                      {"other_tensors", absent->other_tensors},
                      {"other_bytes", absent->other_bytes}};
  }
  return json;
}

}  // namespace dspack::runtime
