#include "runtime/generate/speculator.h"

#include <algorithm>

#include "format/base/seconds.h"
#include "runtime/generate/acceptance.h"

namespace dspack::runtime {

namespace {

double sum_of(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates)
    sum += candidate.probability;
  return sum;
}

}  // namespace

Speculator::Speculator(Model& model, MtpModule& module, const SpeculationOptions& options)
    : model_(model),
      module_(module),
      options_(options),
      policy_(options.drafts ? DraftPolicy::fixed(*options.drafts) : DraftPolicy::automatic(kMostAutomatic)) {
  const uint32_t most = options.drafts.value_or(kMostAutomatic);
  stats_.tried.resize(most);
  stats_.stood.resize(most);
}

void Speculator::prefilled(uint64_t positions, double seconds) {
  if (positions == 0) return;
  policy_.expect_catch_up(seconds / static_cast<double>(positions) / static_cast<double>(model_.layer_map().size()));
}

MtpHidden Speculator::hidden() const {
  if (options_.hidden) return *options_.hidden;
  return stats_.choice.chosen();
}

// The module reads what the model has passed since; after it, its last output foretells the token behind tokens.back().
Result<void> Speculator::catch_up(std::span<const uint32_t> tokens, const std::stop_token& stop) {
  const auto start = Clock::now();
  const uint32_t pending = module_.pending();
  if (!options_.hidden && !stats_.choice.is_settled() && pending > 1) {
    TRY(stats_.choice.catch_up(module_, tokens, model_.config().vocab, stop));
  } else {
    TRY(module_.catch_up(tokens.subspan(module_.length() + 1, pending), hidden(), stop));
  }
  stats_.caught_up += pending;
  if (pending <= kMostAutomatic + 1) return {};  // as every step that drafts has it
  counts_before_ = model_.experts().miss_counts();
  catch_up_seconds_ = seconds_since(start);
  policy_.record_catch_up(pending, catch_up_seconds_);
  return {};
}

// What the module's last output makes of the token behind `context`.
Result<std::vector<Candidate>> Speculator::proposal(std::span<const uint32_t> context, const Sampler& sampler) {
  if (sampler.takes_highest()) {
    if (const auto token = module_.likeliest(module_.last())) return std::vector<Candidate>{{*token, 1.0}};
  }
  logits_.resize(model_.config().vocab);
  module_.logits(module_.last(), logits_);
  return sampler.distribution(logits_, context);
}

Result<void> Speculator::draft(std::span<const uint32_t> tokens, uint32_t count, Sampler& sampler,
                               const std::stop_token& stop) {
  TRY(catch_up(tokens, stop));
  std::vector<uint32_t> context(tokens.begin(), tokens.end());
  while (drafts_.size() < count) {
    if (!drafts_.empty()) TRY(module_.chain(drafts_.back(), hidden(), stop));
    TRY_ASSIGN(std::vector<Candidate> proposed, proposal(context, sampler));
    drafts_.push_back(draw(proposed, sum_of(proposed), [&] { return sampler.uniform(); }));
    proposals_.push_back(std::move(proposed));
    context.push_back(drafts_.back());
  }
  return {};
}

Result<std::span<const uint32_t>> Speculator::propose(std::span<const uint32_t> tokens, uint32_t most, Sampler& sampler,
                                                      const std::stop_token& stop) {
  step_start_ = Clock::now();
  counts_before_ = model_.experts().miss_counts();
  catch_up_seconds_ = 0;
  drafts_.clear();
  proposals_.clear();
  const uint32_t count = std::min(policy_.next(module_.pending()), most);
  if (count == 0) return std::span<const uint32_t>();
  const auto drafted = draft(tokens, count, sampler, stop);
  module_.truncate(model_.cache().length());  // the module's own chain of outputs is no past
  stats_.module_seconds += seconds_since(step_start_);
  if (!drafted) {
    drafts_.clear();
    proposals_.clear();
    return drafted.error();
  }
  return std::span<const uint32_t>(drafts_);
}

Result<std::vector<uint32_t>> Speculator::verify(std::span<const uint32_t> tokens, std::span<const float> logits,
                                                 Sampler& sampler) {
  const uint64_t vocab = model_.config().vocab;
  DSPACK_CHECK(logits.size() == (drafts_.size() + 1) * vocab, "logits of other rows");
  std::vector<uint32_t> context(tokens.begin(), tokens.end());
  const auto certain = [&] {
    return std::vector<uint32_t>(context.begin() + static_cast<std::ptrdiff_t>(tokens.size()), context.end());
  };
  const auto uniform = [&] { return sampler.uniform(); };
  uint32_t accepted = 0;
  for (; accepted < drafts_.size(); ++accepted) {
    TRY_ASSIGN(const auto target, sampler.distribution(logits.subspan(accepted * vocab, vocab), context));
    context.push_back(keep_or_replace(target, proposals_[accepted], drafts_[accepted], uniform));
    if (context.back() != drafts_[accepted]) break;
  }
  if (accepted == drafts_.size()) {
    TRY_ASSIGN(const uint32_t token, sampler.sample(logits.subspan(accepted * vocab, vocab), context));
    context.push_back(token);
  }
  count(accepted);
  return certain();
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
  const MissCounts counts = model_.experts().miss_counts();
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
