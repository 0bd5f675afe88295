#include "runtime/generate/speculator.h"

#include <algorithm>

#include "format/base/seconds.h"

namespace dspack::runtime {

Speculator::Speculator(const Engine& engine, const SpeculationOptions& options)
    : engine_(engine),
      options_(options),
      policy_(options.drafts ? DraftPolicy::fixed(*options.drafts) : DraftPolicy::automatic()) {
  DSPACK_CHECK(engine.mtp != nullptr, "nothing to draft with");
  if (!options_.hidden) options_.hidden = module().usual_hidden();
  const uint32_t most = options.drafts.value_or(module().drafts_at_once());
  stats_.tried.resize(most);
  stats_.stood.resize(most);
}

void Speculator::prefilled(uint64_t positions, double seconds) {
  if (positions == 0) return;
  policy_.expect_catch_up(seconds / static_cast<double>(positions) /
                          static_cast<double>(engine_.model.layer_map().size()));
}

// The module reads the positions that the model has computed since; its last output then predicts the token after
// tokens.back().
Result<kernels::Rows> Speculator::catch_up(Sequence& sequence, std::span<const uint32_t> tokens,
                                           const std::stop_token& stop) {
  const auto start = Clock::now();
  const MtpState& state = *sequence.mtp();
  const uint32_t pending = state.pending();
  TRY_ASSIGN(const kernels::Rows last,
             module().catch_up(sequence, engine_.scratch, tokens.subspan(state.length() + 1, pending), *options_.hidden,
                               stop));
  stats_.caught_up += pending;
  if (pending <= stats_.tried.size() + 1) return last;  // usual in every step that drafts
  counts_before_ = engine_.model.experts().miss_counts();
  catch_up_seconds_ = seconds_since(start);
  policy_.record_catch_up(pending, catch_up_seconds_);
  return last;
}

Result<void> Speculator::draft(Sequence& sequence, std::span<const uint32_t> tokens, uint32_t count,
                               const Sampler& sampler, const std::stop_token& stop) {
  TRY_ASSIGN(const kernels::Rows begin, catch_up(sequence, tokens, stop));
  std::vector<uint32_t> context(tokens.begin(), tokens.end());
  const DraftModule::Choose choose = [&](const kernels::Rows& scores) -> Result<uint32_t> {
    TRY_ASSIGN(const uint32_t token, engine_.picker.choose(scores, context, sampler));
    context.push_back(token);
    return token;
  };
  TRY_ASSIGN(drafts_, module().draft({.sequence = sequence,
                                      .scratch = engine_.scratch,
                                      .begin = begin,
                                      .last = tokens.back(),
                                      .count = count,
                                      .hidden = *options_.hidden,
                                      .least_chance = options_.drafts ? 0 : policy_.least_chance(),
                                      .choose = choose,
                                      .stop = stop}));
  return {};
}

Result<std::span<const uint32_t>> Speculator::propose(Sequence& sequence, std::span<const uint32_t> tokens,
                                                      uint32_t most, const Sampler& sampler,
                                                      const std::stop_token& stop) {
  DSPACK_CHECK(sequence.mtp() != nullptr, "a sequence that keeps nothing for the module");
  step_start_ = Clock::now();
  counts_before_ = engine_.model.experts().miss_counts();
  catch_up_seconds_ = 0;
  drafts_.clear();
  const uint32_t wanted = policy_.next(sequence.mtp()->pending()) * (options_.drafts ? 1 : module().drafts_at_once());
  const uint32_t count = std::min(wanted, most);
  if (count == 0) return std::span<const uint32_t>();
  const auto drafted = draft(sequence, tokens, count, sampler, stop);
  sequence.mtp()->truncate(sequence.length());  // rows of the module's own chain must not stay in its cache
  stats_.module_seconds += seconds_since(step_start_);
  if (!drafted) {
    drafts_.clear();
    return drafted.error();
  }
  return std::span<const uint32_t>(drafts_);
}

Result<std::vector<uint32_t>> Speculator::verify(std::span<const uint32_t> tokens, std::span<const float> logits,
                                                 const Sampler& sampler) {
  const uint64_t vocab = engine_.model.config().vocab;
  DSPACK_CHECK(logits.size() == (drafts_.size() + 1) * vocab, "logits of other rows");
  std::vector<uint32_t> context(tokens.begin(), tokens.end());
  uint32_t accepted = 0;
  for (;; ++accepted) {
    TRY_ASSIGN(const uint32_t token, sampler.sample(logits.subspan(accepted * vocab, vocab), context));
    context.push_back(token);
    if (accepted == drafts_.size() || token != drafts_[accepted]) break;
  }
  count(accepted);
  return std::vector<uint32_t>(context.begin() + static_cast<std::ptrdiff_t>(tokens.size()), context.end());
}

std::vector<uint32_t> Speculator::verify(std::span<const uint32_t> likeliest) {
  DSPACK_CHECK(likeliest.size() == drafts_.size() + 1, "tokens of other rows");
  const auto differing = std::ranges::mismatch(drafts_, likeliest).in1;
  const auto accepted = static_cast<uint32_t>(differing - drafts_.begin());
  count(accepted);
  return {likeliest.begin(), likeliest.begin() + accepted + 1};
}

void Speculator::count(uint32_t accepted) {
  const auto drafted = static_cast<uint32_t>(drafts_.size());
  const MissCounts counts = engine_.model.experts().miss_counts();
  policy_.record({.drafted = drafted,
                  .accepted = accepted,
                  .seconds = seconds_since(step_start_) - catch_up_seconds_,
                  .catch_up_seconds = catch_up_seconds_,
                  .waiting_seconds = counts.waiting_seconds - counts_before_.waiting_seconds,
                  .misses = counts.misses - counts_before_.misses,
                  .draft_misses = counts.draft_misses - counts_before_.draft_misses});
  ++stats_.steps;
  if (drafted > 0) ++stats_.drafting_steps;
  stats_.drafted += drafted;
  stats_.accepted += accepted;
  for (uint32_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
    ++stats_.tried[i];
    if (i < accepted) ++stats_.stood[i];
  }
}

}  // namespace dspack::runtime
