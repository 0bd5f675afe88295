#include "runtime/generate/mtp_hidden_choice.h"

#include <algorithm>
#include <cmath>

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

}  // namespace dspack::runtime
