#include "runtime/generate/stats.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/budget/memory_plan.h"
#include "runtime/budget/system_memory.h"

namespace dspack::runtime {
namespace {

double ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// A step yields one token and its accepted drafts.
double tokens_per_pass(const SpeculationStats& stats) {
  return ratio(stats.steps + stats.accepted, stats.steps);
}

const char* name_of(MtpHidden hidden) {
  if (hidden == MtpHidden::streams) return "streams";
  if (hidden == MtpHidden::stream_means) return "means of streams";
  return hidden == MtpHidden::post_norm ? "post-norm" : "pre-norm";
}

double rate(uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// Counts experts and their files in the layers that this run may read.
void count_experts(const format::Checkpoint& checkpoint, const std::set<LayerId>& layers, RunStats& stats) {
  std::set<uint32_t> files;
  for (const auto& [key, tensors] : checkpoint.experts()) {
    if (!layers.contains(key.layer)) continue;
    ++stats.present_experts;
    for (const uint32_t tensor : tensors)
      files.insert(checkpoint.tensors()[tensor].file);
  }
  stats.expert_files = files.size();
}

format::Json speed(uint64_t tokens, double seconds, const StageSeconds& stages, const PhaseStats& experts) {
  format::Json json = {{"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", rate(tokens, seconds)}};
  if (stages != StageSeconds{}) json["seconds_by_stage"] = to_json(with_waiting_apart(stages, experts.waiting_seconds));
  return json;
}

format::Json phase_json(const ExpertStoreStats& stats, Phase phase) {
  const PhaseStats& counts = stats.phases[static_cast<size_t>(phase)];
  const auto tier = [&](Medium which) {
    const auto index = static_cast<size_t>(which);
    return format::Json{{"misses", counts.misses[index]}, {"bytes", counts.bytes[index]}};
  };
  return {{"passes", counts.passes},
          {"hits", counts.hits},
          {"late", counts.late},
          {"misses", counts.all_misses()},
          {"draft_misses", counts.draft_misses},
          {"evictions", counts.evictions},
          {"waiting_seconds", counts.waiting_seconds},
          {"disk", tier(Medium::disk)},
          {"network", tier(Medium::network)}};
}

format::Json prefetch_json(const ExpertStoreStats& stats) {
  const PhaseStats& counts = stats.phases[static_cast<size_t>(Phase::decode)];
  return {
      {"mode", stats.prefetch},
      {"switched_off", stats.prefetch_switched_off},
      {"experts", counts.prefetches},
      {"bytes", counts.prefetched_bytes},
      {"useful", counts.useful_prefetches},
      {"useful_bytes", counts.useful_bytes},
      {"wasted_bytes", counts.wasted_bytes},
      {"forecast", {{"demands", counts.foreseeable}, {"expected", counts.expected}, {"foreseen", counts.foreseen}}}};
}

format::Json vram_phase_json(const VramPhaseStats& counts) {
  return {{"hits", counts.hits},           {"late", counts.late},
          {"moved", counts.moved},         {"moved_bytes", counts.moved_bytes},
          {"computed", counts.computed},   {"computed_bytes", counts.computed_bytes},
          {"promoted", counts.promoted},   {"promoted_bytes", counts.promoted_bytes},
          {"returned", counts.returned},   {"returned_bytes", counts.returned_bytes},
          {"evictions", counts.evictions}, {"waiting_seconds", counts.waiting_seconds}};
}

// The tier of experts in GPU memory. Its misses are demands on the host's store, which the counts beside it cover.
format::Json vram_json(const VramStats& stats) {
  const VramPhaseStats& decode = stats.phases[static_cast<size_t>(Phase::decode)];
  format::Json json = {{"slots", stats.slots},
                       {"used", stats.used},
                       {"bytes", stats.bytes},
                       {"miss", stats.miss},
                       {"deterministic", stats.is_deterministic},
                       {"draft_misses", stats.draft_misses},
                       {"link_bytes_per_second", stats.link_bytes_per_second},
                       {"cpu_bytes_per_second", stats.cpu_bytes_per_second},
                       {"prefill", vram_phase_json(stats.phases[static_cast<size_t>(Phase::prefill)])},
                       {"decode", vram_phase_json(decode)},
                       {"prefetch",
                        {{"experts", decode.prefetches},
                         {"bytes", decode.prefetched_bytes},
                         {"useful", decode.useful_prefetches},
                         {"wasted_bytes", decode.wasted_bytes}}}};
  for (const VramStats& card : stats.cards)
    json["cards"].push_back(vram_json(card));
  return json;
}

// The time of decoding, compared with its lower bound (schedule.h).
format::Json bound_json(const DecodeBound& bound, double seconds) {
  const auto ratio = [&](double limit) { return limit > 0 ? seconds / limit : 0.0; };
  return {{"seconds", bound.seconds(seconds)},
          {"ratio", ratio(bound.seconds(seconds))},
          {"with_foresight", bound.with_foresight(seconds)},
          {"ratio_with_foresight", ratio(bound.with_foresight(seconds))},
          {"outside_of_experts", bound.outside(seconds)},
          {"compute", bound.compute_seconds()},
          {"transfer", bound.transfer_seconds()},
          {"host_compute", bound.host_seconds()}};
}

format::Json network_json(const NetworkTraffic& traffic, uint64_t tokens) {
  const auto by_purpose = [](const PurposeBytes& bytes) {
    return format::Json{{"always_needed", bytes[0]}, {"embedding", bytes[1]}, {"experts", bytes[2]}};
  };
  const auto for_tokens = [&](const PurposeBytes& bytes) { return tokens == 0 ? 0 : (bytes[1] + bytes[2]) / tokens; };
  return {{"requests", traffic.requests},
          {"link_resolutions", traffic.resolutions},
          {"retries", traffic.retries},
          {"body_bytes", traffic.body_bytes},
          {"bytes", by_purpose(traffic.network_bytes)},
          {"cache_bytes", by_purpose(traffic.cache_bytes)},
          {"bytes_per_token", for_tokens(traffic.network_bytes)},
          {"cache_bytes_per_token", for_tokens(traffic.cache_bytes)},
          {"refetches", traffic.refetches},
          {"cache_size_bytes", traffic.cache_size_bytes}};
}

format::Json expert_json(const RunStats& stats) {
  std::map<LayerId, uint64_t> read;
  for (const ExpertKey& key : stats.experts.read_experts)
    ++read[key.layer];
  format::Json layers = format::Json::array();
  std::set<std::string> opened;
  for (const auto& [layer, files] : stats.experts.opened_files) {
    layers.push_back({{"layer", layer.value}, {"read", read[layer]}, {"opened_files", files}});
    opened.insert(files.begin(), files.end());
  }
  format::Json json = {{"present", stats.present_experts},
                       {"read", stats.experts.read_experts.size()},
                       {"hits", stats.experts.hits()},
                       {"misses", stats.experts.misses()},
                       {"policy", stats.experts.policy},
                       {"in_place", stats.experts.in_place},
                       {"slots", stats.experts.slots},
                       {"prefill", phase_json(stats.experts, Phase::prefill)},
                       {"decode", phase_json(stats.experts, Phase::decode)},
                       {"decode_bound", bound_json(stats.decode_bound, stats.times.decode_seconds)},
                       {"prefetch", prefetch_json(stats.experts)},
                       {"files", stats.expert_files},
                       {"opened_files", opened.size()},
                       {"layers", std::move(layers)}};
  if (stats.experts.vram) json["vram"] = vram_json(*stats.experts.vram);
  return json;
}

RunStats::VramBytes vram_bytes(const kernels::Device& device, const kernels::DeviceMemory& before) {
  const kernels::DeviceMemory now = device.memory();
  return {.card = now.total_bytes, .used = before.free_bytes - std::min(before.free_bytes, now.free_bytes)};
}

format::Json to_json(const RunStats::VramBytes& bytes) {
  return {{"card", bytes.card}, {"used", bytes.used}};
}

}  // namespace

MtpStats collect_mtp_stats(const Speculator& speculator, const MtpState& state, const format::Checkpoint& checkpoint,
                           const ExpertStoreStats& experts) {
  const DraftModule& module = speculator.module();
  MtpStats stats{.speculation = speculator.stats(),
                 .drafts = speculator.options().drafts,
                 .hidden = *speculator.options().hidden,
                 .shares_head = module.shares_head(),
                 .shares_embedding = module.shares_embedding(),
                 .read_weight_bytes = module.bytes_read(),
                 .weight_bytes = module.weight_bytes(),
                 .cache_bytes = state.cache_bytes(),
                 .scratch_bytes = module.scratch_bytes() + state.residual_bytes()};
  const std::vector<LayerId> layers = module.layers();
  for (const ExpertKey& key : experts.read_experts) {
    if (std::ranges::find(layers, key.layer) == layers.end()) continue;
    for (const uint32_t tensor : checkpoint.expert(key))
      stats.read_expert_bytes += checkpoint.tensors()[tensor].range.size();
  }
  return stats;
}

format::Json to_json(const MtpStats& stats) {
  const SpeculationStats& all = stats.speculation;
  format::Json by_position = format::Json::array();
  for (size_t i = 0; i < all.tried.size() && all.tried[i] > 0; ++i)
    by_position.push_back(
        {{"tried", all.tried[i]}, {"stood", all.stood[i]}, {"share", ratio(all.stood[i], all.tried[i])}});
  format::Json json = {
      {"drafts", stats.drafts ? format::Json(*stats.drafts) : format::Json("auto")},
      {"hidden", name_of(stats.hidden)},
      {"passes", all.steps},
      {"drafting_passes", all.drafting_steps},
      {"drafted", all.drafted},
      {"accepted", all.accepted},
      {"acceptance", ratio(all.accepted, all.drafted)},
      {"acceptance_by_position", std::move(by_position)},
      {"tokens_per_pass", tokens_per_pass(all)},
      {"caught_up_positions", all.caught_up},
      {"module_seconds", all.module_seconds},
      {"shares_head", stats.shares_head},
      {"shares_embedding", stats.shares_embedding},
      {"bytes_read", {{"weights", stats.read_weight_bytes}, {"experts", stats.read_expert_bytes}}},
      {"memory_bytes",
       {{"weights", stats.weight_bytes}, {"kv_cache", stats.cache_bytes}, {"scratch", stats.scratch_bytes}}}};
  return json;
}

std::string summary(const MtpStats& stats) {
  const SpeculationStats& all = stats.speculation;
  return fmt::format("MTP ({}): {} of {} drafts accepted, {:.2f} tokens a pass", name_of(stats.hidden), all.accepted,
                     all.drafted, tokens_per_pass(all));
}

format::Json to_json(const StageSeconds& seconds) {
  format::Json json = format::Json::object();
  for (size_t stage = 0; stage < kStages; ++stage)
    json[std::string(kStageNames[stage])] = seconds[stage];
  return json;
}

RunStats collect_stats(LoadedModel& loaded, const Session& session) {
  const Model& model = loaded.model();
  const Sequence& sequence = session.sequence();
  const CheckpointAccess& access = loaded.access();
  RunStats stats;
  stats.device = loaded.chosen().description();
  stats.context = sequence.capacity();
  stats.layer_map = model.layer_map();
  stats.times = session.times();
  stats.io = access.io();
  stats.experts = loaded.experts().stats();
  stats.decode_bound = loaded.experts().decode_bound();
  stats.precision = loaded.chosen().precision();
  const ChosenDevice& chosen = loaded.chosen();
  if (chosen.is_gpu()) stats.vram = vram_bytes(chosen.device(), chosen.memory_before());
  for (const ChosenDevice::Further& further : chosen.further())
    stats.further_vram.push_back(vram_bytes(*further.device, further.before));
  stats.bytes_read = {.always_needed = access.bytes_read(WeightPurpose::always_needed),
                      .embedding = access.bytes_read(WeightPurpose::embedding),
                      .experts = stats.experts.bytes_read()};
  stats.memory_bytes = {.weights = model.weight_bytes(),
                        .kv_cache = sequence.cache().size_bytes(),
                        .scratch = loaded.scratch_bytes() + loaded.experts().scratch_bytes(),
                        .experts = stats.experts.resident_bytes};
  stats.memory_plan = loaded.memory_plan();
  if (const auto peak = peak_resident_bytes()) stats.process_peak_bytes = *peak;
  std::set<LayerId> read_layers(stats.layer_map.begin(), stats.layer_map.end());
  if (const Speculator* speculator = session.speculator()) {
    stats.mtp = collect_mtp_stats(*speculator, *sequence.mtp(), loaded.checkpoint(), stats.experts);
    stats.memory_bytes.weights += stats.mtp->weight_bytes;
    stats.memory_bytes.kv_cache += stats.mtp->cache_bytes;
    stats.memory_bytes.scratch += stats.mtp->scratch_bytes;
    for (const LayerId layer : speculator->module().layers())
      read_layers.insert(layer);
  }
  count_experts(loaded.checkpoint(), read_layers, stats);
  stats.network = access.weights().traffic();
  return stats;
}

format::Json to_json(const RunStats& stats) {
  const RunStats::BytesRead& read = stats.bytes_read;
  const RunStats::MemoryBytes& memory = stats.memory_bytes;
  const SessionTimes& times = stats.times;
  const auto experts = [&](Phase phase) -> const PhaseStats& {
    return stats.experts.phases[static_cast<size_t>(phase)];
  };
  format::Json json = {
      {"device", stats.device},
      {"precision", kernels::to_string(stats.precision)},
      {"rounding", rounding_words(stats.precision)},
      {"context", stats.context},
      {"layer_map", format::layer_map_json(stats.layer_map)},
      {"prefill", speed(times.prefill_tokens, times.prefill_seconds, times.prefill_stages, experts(Phase::prefill))},
      {"decode", speed(times.decode_tokens, times.decode_seconds, times.decode_stages, experts(Phase::decode))},
      {"bytes_read",
       {{"always_needed", read.always_needed},
        {"embedding", read.embedding},
        {"experts", read.experts},
        {"total", read.always_needed + read.embedding + read.experts}}},
      {"memory_bytes",
       {{"weights", memory.weights},
        {"kv_cache", memory.kv_cache},
        {"scratch", memory.scratch},
        {"experts", memory.experts},
        {"total", memory.weights + memory.kv_cache + memory.scratch + memory.experts}}},
      {"io", to_json(stats.io)},
      {"experts", expert_json(stats)}};
  json["memory_plan"] = to_json(stats.memory_plan);
  if (stats.vram) json["vram"] = to_json(*stats.vram);
  for (const RunStats::VramBytes& card : stats.further_vram)
    json["further_vram"].push_back(to_json(card));
  if (stats.process_peak_bytes) json["memory_bytes"]["process_peak"] = *stats.process_peak_bytes;
  if (stats.network) {
    json["network"] = network_json(*stats.network, stats.times.prefill_tokens + stats.times.decode_tokens);
  }
  if (stats.mtp) json["mtp"] = to_json(*stats.mtp);
  return json;
}

std::string summary(const RunStats& stats) {
  const SessionTimes& times = stats.times;
  return fmt::format(
             "prefill {} tokens, {:.1f}/s; decode {} tokens, {:.1f}/s; {} experts loaded, {:.1f} MB read; {}, {}",
             times.prefill_tokens, rate(times.prefill_tokens, times.prefill_seconds), times.decode_tokens,
             rate(times.decode_tokens, times.decode_seconds), stats.experts.resident_experts,
             static_cast<double>(stats.bytes_read.experts) / 1e6, kernels::to_string(stats.precision),
             rounding_words(stats.precision)) +
         (stats.mtp ? "; " + summary(*stats.mtp) : std::string());
}

}  // namespace dspack::runtime
