#include "runtime/generate/speculator.h"

#include <algorithm>
#include <cmath>

#include "format/base/seconds.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {
namespace {

// Most tokens to score: a difference that does not show in this many does not matter.
constexpr uint32_t kMostScored = 512;
// Fewer tokens do not give a spread.
constexpr uint32_t kFewestScored = 8;
// The test is repeated as tokens arrive, so two standard errors would sometimes be exceeded by chance.
constexpr double kStandardErrors = 3;

double log_likelihood(std::span<const float> logits, uint32_t token) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(double{logit} - highest);
  return double{logits[token]} - highest - std::log(sum);
}

struct Scored {
  std::vector<double> likelihoods;
  uint32_t right = 0;
  kernels::Rows last;  // output of the module
};

class Scorer {
 public:
  /// Scores at most the last `most` of the pending positions.
  Scorer(const MtpModule& module, Sequence& sequence, Scratch& scratch, std::span<const uint32_t> tokens, uint32_t most)
      : module_(module),
        sequence_(sequence),
        scratch_(scratch),
        tokens_(tokens),
        vocab_(module.head().weight().out),
        start_(sequence.mtp()->length()),
        count_(sequence.mtp()->pending()),
        first_scored_(count_ - 1 - std::min(count_ - 1, most)) {}

  // Runs all pending positions. The last one predicts a token that is not known yet.
  Result<Scored> run(MtpHidden hidden, const std::stop_token& stop) {
    Scored scored;
    const auto score = [&](uint32_t first, const kernels::Rows& rows) {
      const uint32_t from = std::max(first, first_scored_);
      const uint32_t to = std::min(first + rows.rows, count_ - 1);
      if (from >= to) return;
      logits_.resize(size_t{to - from} * vocab_);
      module_.logits(rows_of(rows, from - first, to - from), scratch_, logits_);
      for (uint32_t i = from; i < to; ++i)
        add(scored, std::span(logits_).subspan(size_t{i - from} * vocab_, vocab_), tokens_[start_ + i + 2]);
    };
    TRY_ASSIGN(scored.last,
               module_.catch_up(sequence_, scratch_, tokens_.subspan(start_ + 1, count_), hidden, stop, score));
    return scored;
  }

 private:
  static void add(Scored& scored, std::span<const float> logits, uint32_t token) {
    scored.likelihoods.push_back(log_likelihood(logits, token));
    const auto best = static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin());
    if (best == token) ++scored.right;
  }

  const MtpModule& module_;
  Sequence& sequence_;
  Scratch& scratch_;
  std::span<const uint32_t> tokens_;
  uint32_t vocab_;
  uint32_t start_;  // the first pending position
  uint32_t count_;
  uint32_t first_scored_;  // relative to start_
  std::vector<float> logits_;
};

}  // namespace

HiddenScores HiddenChoice::scores() const {
  if (tokens_ == 0) return {};
  const double count = tokens_;
  const double variance =
      tokens_ < 2 ? 0 : std::max(0.0, difference_squares_ - difference_ * difference_ / count) / (count - 1);
  return {.post_norm = {.log_likelihood = post_norm_.likelihood / count, .right = post_norm_.right / count},
          .pre_norm = {.log_likelihood = pre_norm_.likelihood / count, .right = pre_norm_.right / count},
          .standard_error = std::sqrt(variance / count),
          .tokens = tokens_};
}

void HiddenChoice::add(const std::vector<double>& post_norm, const std::vector<double>& pre_norm) {
  for (size_t i = 0; i < post_norm.size(); ++i) {
    const double difference = post_norm[i] - pre_norm[i];
    post_norm_.likelihood += post_norm[i];
    pre_norm_.likelihood += pre_norm[i];
    difference_ += difference;
    difference_squares_ += difference * difference;
    ++tokens_;
  }
  const HiddenScores now = scores();
  const double lead = now.post_norm.log_likelihood - now.pre_norm.log_likelihood;
  const bool clear = tokens_ >= kFewestScored && std::abs(lead) > kStandardErrors * now.standard_error;
  if (clear) chosen_ = lead > 0 ? MtpHidden::post_norm : MtpHidden::pre_norm;
  settled_ = clear || tokens_ >= kMostScored;
}

Result<kernels::Rows> HiddenChoice::catch_up(const MtpModule& module, Sequence& sequence, Scratch& scratch,
                                             std::span<const uint32_t> tokens, const std::stop_token& stop) {
  MtpState& state = *sequence.mtp();
  DSPACK_CHECK(state.pending() > 0 && state.length() + state.pending() + 1 == tokens.size(), "other tokens");
  Scorer scorer(module, sequence, scratch, tokens, kMostScored - tokens_);
  TRY_ASSIGN(const Scored pre_norm, scorer.run(MtpHidden::pre_norm, stop));
  state.undo_catch_up();
  TRY_ASSIGN(const Scored post_norm, scorer.run(MtpHidden::post_norm, stop));
  post_norm_.right += post_norm.right;
  pre_norm_.right += pre_norm.right;
  add(post_norm.likelihoods, pre_norm.likelihoods);
  if (chosen_ == MtpHidden::post_norm) return post_norm.last;
  // Positions that the module read earlier with the other setting stay: they can make this conversation's drafts
  // slightly worse.
  state.undo_catch_up();
  TRY_ASSIGN(const Scored again, scorer.run(MtpHidden::pre_norm, stop));
  return again.last;
}

Speculator::Speculator(const Engine& engine, const SpeculationOptions& options)
    : engine_(engine),
      options_(options),
      policy_(options.drafts ? DraftPolicy::fixed(*options.drafts) : DraftPolicy::automatic(kMostAutomatic)) {
  DSPACK_CHECK(engine.mtp != nullptr, "nothing to draft with");
  const uint32_t most = options.drafts.value_or(kMostAutomatic);
  stats_.tried.resize(most);
  stats_.stood.resize(most);
}

void Speculator::prefilled(uint64_t positions, double seconds) {
  if (positions == 0) return;
  policy_.expect_catch_up(seconds / static_cast<double>(positions) /
                          static_cast<double>(engine_.model.layer_map().size()));
}

MtpHidden Speculator::hidden() const {
  if (options_.hidden) return *options_.hidden;
  return stats_.choice.chosen();
}

// The module reads the positions that the model has computed since; its last output then predicts the token after
// tokens.back().
Result<kernels::Rows> Speculator::catch_up(Sequence& sequence, std::span<const uint32_t> tokens,
                                           const std::stop_token& stop) {
  const auto start = Clock::now();
  const MtpState& state = *sequence.mtp();
  const uint32_t pending = state.pending();
  kernels::Rows last;
  if (!options_.hidden && !stats_.choice.is_settled() && pending > 1) {
    TRY_ASSIGN(last, stats_.choice.catch_up(module(), sequence, engine_.scratch, tokens, stop));
  } else {
    TRY_ASSIGN(last, module().catch_up(sequence, engine_.scratch, tokens.subspan(state.length() + 1, pending), hidden(),
                                       stop));
  }
  stats_.caught_up += pending;
  if (pending <= kMostAutomatic + 1) return last;  // usual in every step that drafts
  counts_before_ = engine_.model.experts().miss_counts();
  catch_up_seconds_ = seconds_since(start);
  policy_.record_catch_up(pending, catch_up_seconds_);
  return last;
}

// The token that the module's output proposes after `context`.
Result<uint32_t> Speculator::proposal(const kernels::Rows& output, std::span<const uint32_t> context,
                                      const Sampler& sampler) {
  if (sampler.takes_highest()) {
    if (const auto tokens = engine_.picker.likeliest(module().normalised(output), module().head()))
      return tokens->front();
  }
  logits_.resize(engine_.model.config().vocab);
  module().logits(output, engine_.scratch, logits_);
  return sampler.sample(logits_, context);
}

Result<void> Speculator::draft(Sequence& sequence, std::span<const uint32_t> tokens, uint32_t count,
                               const Sampler& sampler, const std::stop_token& stop) {
  TRY_ASSIGN(kernels::Rows last, catch_up(sequence, tokens, stop));
  std::vector<uint32_t> context(tokens.begin(), tokens.end());
  while (drafts_.size() < count) {
    if (!drafts_.empty()) {
      TRY_ASSIGN(last, module().chain(sequence, engine_.scratch, last, drafts_.back(), hidden(), stop));
    }
    TRY_ASSIGN(const uint32_t token, proposal(last, context, sampler));
    drafts_.push_back(token);
    context.push_back(token);
  }
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
  const uint32_t count = std::min(policy_.next(sequence.mtp()->pending()), most);
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
