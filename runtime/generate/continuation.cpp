#include "runtime/generate/continuation.h"

#include <fmt/format.h>

#include <algorithm>

namespace dspack::runtime {

Result<void> check_prompt(std::span<const uint32_t> prompt, const ModelConfig& config, uint32_t positions) {
  if (prompt.empty()) return Error{ErrorKind::invalid, "the prompt holds no token"};
  for (const uint32_t token : prompt) {
    if (token >= config.vocab) {
      return Error{
          ErrorKind::invalid,
          fmt::format("token {} is outside the vocabulary of {} (vocab_size in config.json)", token, config.vocab)};
    }
  }
  if (prompt.size() <= positions) return {};
  return Error{ErrorKind::invalid,
               fmt::format("the prompt has {} tokens, but the context holds {}; shorten it or allow "
                           "more with --ctx (this model: up to {})",
                           prompt.size(), positions, config.max_positions)};
}

uint32_t kept_tokens(std::span<const uint32_t> held, std::span<const uint32_t> prompt) {
  const auto common = std::ranges::mismatch(held, prompt).in1 - held.begin();
  return static_cast<uint32_t>(std::min<size_t>(static_cast<size_t>(common), prompt.size() - 1));
}

Continuation::Continuation(const Engine& engine, Sequence& sequence, Speculator* speculator,
                           std::vector<uint32_t> prompt, const AnswerLimits& limits, Sampler& sampler)
    : engine_(engine),
      sequence_(sequence),
      speculator_(speculator),
      limits_(limits),
      sampler_(sampler),
      tokens_(std::move(prompt)),
      prompt_(static_cast<uint32_t>(tokens_.size())) {
  sequence_.truncate(kept_tokens(sequence_.tokens(), tokens_));
  sampler_.begin_answer(prompt_);
}

Result<std::span<const uint32_t>> Continuation::next(uint32_t most, bool may_draft, const std::stop_token& stop) {
  DSPACK_CHECK(most > 0 && lacking() > 0, "a pass without rows");
  proposed_ = false;
  drafts_ = 0;
  if (is_reading_) {
    const auto part = std::span(tokens_).subspan(sequence_.length(), std::min(most, lacking()));
    rows_.assign(part.begin(), part.end());
    return std::span<const uint32_t>(rows_);
  }
  rows_ = {tokens_.back()};
  if (speculator_ != nullptr && may_draft) {
    const uint64_t wanted = limits_.max_tokens - answer().size();
    const uint32_t room = std::min(sequence_.capacity() - sequence_.length(), most);
    TRY_ASSIGN(const auto drafts,
               speculator_->propose(sequence_, tokens_, static_cast<uint32_t>(std::min<uint64_t>(wanted, room) - 1),
                                    sampler_, stop));
    rows_.insert(rows_.end(), drafts.begin(), drafts.end());
    drafts_ = static_cast<uint32_t>(drafts.size());
    proposed_ = true;
  }
  return std::span<const uint32_t>(rows_);
}

PassEnd* Continuation::end_of_pass() {
  if (is_reading_ || proposed_) return engine_.picker.end_of_pass(static_cast<uint32_t>(rows_.size()));
  return engine_.picker.end_of_pass(sampler_, tokens_);
}

void Continuation::passed(double seconds) {
  if (!is_reading_) return;
  read_ += static_cast<uint32_t>(rows_.size());
  reading_seconds_ += seconds;
  if (speculator_ != nullptr && lacking() == 0) speculator_->prefilled(read_, reading_seconds_);
}

Result<std::vector<uint32_t>> Continuation::verify(const kernels::Rows& final) {
  if (sampler_.takes_highest()) {
    if (const auto likeliest = engine_.picker.likeliest(final)) return speculator_->verify(*likeliest);
  }
  logits_.resize(uint64_t{final.rows} * engine_.model.config().vocab);
  engine_.picker.logits(final, logits_);
  return speculator_->verify(tokens_, logits_, sampler_);
}

Result<void> Continuation::choose(const kernels::Rows& final) {
  DSPACK_CHECK(final.rows == scored_rows(), "states of other rows");
  if (proposed_) return take(verify(final));
  const auto token = engine_.picker.pick(final, tokens_, sampler_);
  return take(token ? Result<std::vector<uint32_t>>(std::vector<uint32_t>{*token}) : token.error());
}

Result<void> Continuation::choose(std::span<const float> logits) {
  DSPACK_CHECK(logits.size() == uint64_t{scored_rows()} * engine_.model.config().vocab, "logits of other rows");
  if (proposed_) return take(speculator_->verify(tokens_, logits, sampler_));
  const auto token = sampler_.sample(logits, tokens_);
  return take(token ? Result<std::vector<uint32_t>>(std::vector<uint32_t>{*token}) : token.error());
}

Result<void> Continuation::take(Result<std::vector<uint32_t>> certain) {
  TRY(engine_.model.check_device());  // first: a failed device's results may not be logits at all
  TRY_ASSIGN(certain_, std::move(certain));
  is_reading_ = false;
  sequence_.truncate(static_cast<uint32_t>(tokens_.size() + certain_.size() - 1));
  return {};
}

std::optional<StopReason> Continuation::deliver(const OnToken& on_token, const std::stop_token& stop) {
  for (uint32_t row = 0; row < certain_.size(); ++row) {
    const uint32_t token = certain_[row];
    if (row > 0 && stop.stop_requested()) return StopReason::interrupted;
    if (std::ranges::find(limits_.end_tokens, token) != limits_.end_tokens.end()) return StopReason::end_token;
    tokens_.push_back(token);
    if (!on_token(token, row)) return StopReason::stopped;
    // The next choice reports an error of the constraint.
    if (const auto complete = sampler_.is_complete(tokens_); complete && *complete) return StopReason::end_token;
    if (answer().size() >= limits_.max_tokens) return StopReason::max_tokens;
  }
  certain_.clear();
  if (sequence_.length() == sequence_.capacity()) return StopReason::context_full;
  return std::nullopt;
}

void Continuation::finish() {
  if (sequence_.length() > tokens_.size()) sequence_.truncate(static_cast<uint32_t>(tokens_.size()));
}

}  // namespace dspack::runtime
