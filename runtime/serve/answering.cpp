#include "runtime/serve/answering.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "format/base/seconds.h"

namespace dspack::runtime {

Answering::Answering(const Tokenizer& tokenizer, const AnswerRequest& request, uint32_t prompt_tokens, Form form,
                     std::unique_ptr<AnswerWriter> writer, Log log)
    : tokenizer_(tokenizer),
      form_(form),
      // Marks of reasoning and calls may be flagged special: the parser needs them.
      detokenizer_(tokenizer, form == Form::text ? SpecialOutput::skip : SpecialOutput::keep),
      stop_(request.stop),
      parser_(form == Form::conversation_in_thought,
              is_json(request.form) ? ReplyParser::Calls::none : ReplyParser::Calls::read),
      min_tokens_(request.min_tokens),
      top_logprobs_(request.top_logprobs),
      writer_(std::move(writer)),
      log_(std::move(log)),
      counts_{.prompt_tokens = prompt_tokens} {}

void Answering::started(uint32_t kept) {
  const std::lock_guard lock(mutex_);
  counts_.kept_tokens = read_ = kept;
  if (!begun_) begun_ = Clock::now();  // not again, when more of the prompt was found
}

void Answering::prompt_read(uint32_t tokens) {
  const std::lock_guard lock(mutex_);
  read_ = tokens;
}

void Answering::drafted(uint32_t tokens, uint32_t accepted) {
  const std::lock_guard lock(mutex_);
  counts_.drafted_tokens += tokens;
  counts_.accepted_drafts += accepted;
}

void Answering::refuse(const Error& error) {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  writer_->fail(error);
}

void Answering::ping(uint32_t layer, uint32_t layers) {
  const std::lock_guard lock(mutex_);
  if (has_ended_ || first_) return;
  writer_->waiting({.read = read_, .tokens = counts_.prompt_tokens, .layer = layer, .layers = layers});
}

bool Answering::token(uint32_t id, std::span<const float> logits) {
  const std::lock_guard lock(mutex_);
  if (!first_) {
    first_ = Clock::now();
    counts_.prompt_seconds = seconds_since(*begun_);
  }
  ++counts_.answer_tokens;
  if (top_logprobs_) untold_.push_back(likelihood(id, logits));
  const bool is_silent =
      form_ != Form::text && tokenizer_.is_special(id) && !ReplyParser::is_mark(tokenizer_.token_bytes(id));
  if (!is_silent) {
    const std::string text = detokenizer_.push(id);
    deliver(counts_.answer_tokens <= min_tokens_ ? text : stop_.push(text), false);
  }
  if (stop_.found() != nullptr) stop_text_ = *stop_.found();
  return !stop_text_;
}

void Answering::ended(const Result<StopReason>& reason) {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  if (!reason) {
    log_(reason.error());
    return writer_->fail(reason.error());
  }
  if (*reason == StopReason::interrupted) return writer_->fail({ErrorKind::cancelled, "the server is going down"});
  if (first_) counts_.answer_seconds = seconds_since(*first_);
  deliver(stop_.push(detokenizer_.flush()) + stop_.finish(), true);
  writer_->end({.reason = *reason, .calls = parser_.calls(), .stop_text = std::move(stop_text_), .counts = counts_});
}

void Answering::deliver(std::string_view text, bool is_end) {
  std::vector<ReplyPart> parts;
  if (form_ == Form::text) {
    if (!text.empty()) parts.push_back({.text = std::string(text)});
  } else {
    parts = parser_.push(text);
    if (is_end) std::ranges::move(parser_.finish(), std::back_inserter(parts));
  }
  if (parts.empty() && is_end && !untold_.empty()) parts.emplace_back();
  for (const ReplyPart& part : parts)
    writer_->part(part, std::exchange(untold_, {}));
}

TokenLikelihood Answering::likelihood(uint32_t id, std::span<const float> logits) const {
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - highest);
  const double of_all = highest + std::log(sum);
  const auto logprob = [&](uint32_t token) { return static_cast<double>(logits[token]) - of_all; };
  TokenLikelihood told;
  told.text = std::string(tokenizer_.token_bytes(id));
  told.logprob = logprob(id);
  const size_t most = std::min<size_t>(*top_logprobs_, logits.size());
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::partial_sort(order, order.begin() + static_cast<std::ptrdiff_t>(most), [&](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (size_t i = 0; i < most; ++i)
    told.likeliest.push_back({.text = std::string(tokenizer_.token_bytes(order[i])), .logprob = logprob(order[i])});
  return told;
}

}  // namespace dspack::runtime
