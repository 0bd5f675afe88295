#include "runtime/generate/mtp_stats.h"

#include <fmt/format.h>

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
  return hidden == MtpHidden::post_norm ? "post-norm" : "pre-norm";
}

format::Json score_json(const HiddenScore& score) {
  return {{"log_likelihood", score.log_likelihood}, {"right", score.right}};
}

format::Json choice_json(const HiddenChoice& choice) {
  const HiddenScores scores = choice.scores();
  return {{"settled", choice.is_settled()},
          {"tokens", scores.tokens},
          {"post_norm", score_json(scores.post_norm)},
          {"pre_norm", score_json(scores.pre_norm)},
          {"standard_error", scores.standard_error}};
}

}  // namespace

MtpStats collect_mtp_stats(const Speculator& speculator, const MtpState& state, const format::Checkpoint& checkpoint,
                           const ExpertStoreStats& experts) {
  const MtpModule& module = speculator.module();
  MtpStats stats{.speculation = speculator.stats(),
                 .drafts = speculator.options().drafts,
                 .hidden = speculator.hidden(),
                 .finds_hidden = !speculator.options().hidden,
                 .shares_head = module.shares_head(),
                 .shares_embedding = module.shares_embedding(),
                 .read_weight_bytes = module.bytes_read(),
                 .weight_bytes = module.weight_bytes(),
                 .cache_bytes = state.cache_bytes(),
                 .scratch_bytes = module.scratch_bytes() + state.residual_bytes()};
  for (const ExpertKey& key : experts.read_experts) {
    if (key.layer != module.layer()) continue;
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
  if (stats.finds_hidden) json["hidden_choice"] = choice_json(all.choice);
  return json;
}

std::string summary(const MtpStats& stats) {
  const SpeculationStats& all = stats.speculation;
  return fmt::format("MTP ({}{}): {} of {} drafts accepted, {:.2f} tokens a pass", name_of(stats.hidden),
                     stats.finds_hidden ? ", found out" : "", all.accepted, all.drafted, tokens_per_pass(all));
}

}  // namespace dspack::runtime
