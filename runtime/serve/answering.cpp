#include "runtime/serve/answering.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "format/base/foreign_text.h"
#include "format/base/seconds.h"
#include "runtime/text/schema_validator.h"
#include "runtime/text/tools.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

bool has_calls(const AnswerForm& form) {
  return form.kind == AnswerForm::Kind::calls || form.kind == AnswerForm::Kind::strict_calls;
}

/// The tools that the answer may call.
std::vector<CallableTool> tools_of(const AnswerRequest& request) {
  const auto* conversation = std::get_if<Conversation>(&request.prompt);
  return conversation == nullptr || is_json(request.form) ? std::vector<CallableTool>()
                                                          : callable_tools(conversation->tools);
}

}  // namespace

void AnswerCheck::take(const ReplyPart& part) {
  switch (part.kind) {
    case ReplyPart::Kind::reasoning: break;
    case ReplyPart::Kind::content:
      if (is_json(form_)) content_ += part.text;
      break;
    case ReplyPart::Kind::call:
      if (has_calls(form_)) calls_.push_back({.name = part.text, .arguments = {}});
      break;
    case ReplyPart::Kind::arguments:
      if (has_calls(form_)) calls_.back().arguments += part.text;
      break;
  }
}

std::optional<std::string> AnswerCheck::fault() const {
  if (is_json(form_)) {
    const auto fault = schema_fault(content_, form_.schema);
    if (!fault) return std::nullopt;
    return fmt::format("the answer is not of the form that was asked for: {}", *fault);
  }
  if (form_.kind == AnswerForm::Kind::calls && calls_.empty()) return "the answer ended before a call was whole";
  for (const auto& [name, arguments] : calls_) {
    const CallableTool* tool = find_tool(form_.tools, name);
    const auto fault = tool == nullptr ? std::nullopt : schema_fault(arguments, tool->parameters);
    if (fault) return fmt::format("the arguments of {} are not of its parameters: {}", quote(name), *fault);
  }
  return std::nullopt;
}

Answering::Answering(const Tokenizer& tokenizer, const AnswerRequest& request, uint32_t prompt_tokens, Form form,
                     Marks marks, std::unique_ptr<AnswerWriter> writer, Log log)
    : tokenizer_(tokenizer),
      form_(form),
      end_think_(marks.end_think),
      // Marks of reasoning and calls may be special tokens: the parser needs them.
      detokenizer_(tokenizer, form == Form::text ? SpecialOutput::skip : SpecialOutput::keep),
      stop_(request.stop),
      parser_({.reasons = form == Form::conversation_in_thought,
               .tools = tools_of(request),
               .family = marks.family,
               .told_ends = marks.end_think.has_value()}),
      check_(request.form),
      min_tokens_(request.min_tokens),
      top_logprobs_(request.top_logprobs),
      writer_(std::move(writer)),
      log_(std::move(log)),
      counts_{.prompt_tokens = prompt_tokens} {}

std::string Answering::text_after(uint32_t id) {
  std::string text = detokenizer_.push(id);
  characters_ += text.size() - static_cast<size_t>(std::ranges::count_if(text, is_continuation));
  return text;
}

void Answering::keep_likelihood(uint32_t id, std::span<const float> logits) {
  if (!top_logprobs_) return;
  untold_.push_back(logits.empty() ? TokenLikelihood{.text = std::string(tokenizer_.token_bytes(id)), .is_known = false}
                                   : likelihood_of(tokenizer_, id, logits, *top_logprobs_));
  untold_.back().offset = characters_;
}

void Answering::echo(std::span<const uint32_t> prompt) {
  const std::lock_guard lock(mutex_);
  for (const uint32_t id : prompt)
    echo_ += text_after(id);
}

void Answering::tell_echo() {
  if (!echo_.empty()) tell({.text = std::exchange(echo_, {})});
}

void Answering::prompt_scored(std::span<const uint32_t> tokens, std::span<const float> logits) {
  const std::lock_guard lock(mutex_);
  const size_t vocab = logits.size() / tokens.size();
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    keep_likelihood(tokens[i], logits.subspan(i * vocab, vocab));
    text += text_after(tokens[i]);
  }
  tell({.text = std::move(text)});
}

void Answering::started(uint32_t kept) {
  const std::lock_guard lock(mutex_);
  tell_echo();
  counts_.kept_tokens = read_ = kept;
  if (!begun_) begun_ = Clock::now();  // not again, if more of the prompt is found in the cache later
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

void Answering::ping(Clock::time_point now, uint32_t layer, uint32_t layers) {
  const std::lock_guard lock(mutex_);
  if (has_ended_ || now - told_ < kMaxSilence) return;
  told_ = now;
  writer_->waiting({.read = read_,
                    .tokens = counts_.prompt_tokens,
                    .layer = layer,
                    .layers = layers,
                    .answer_tokens = counts_.answer_tokens});
}

bool Answering::token(uint32_t id, std::span<const float> logits) {
  const std::lock_guard lock(mutex_);
  if (!first_) {
    first_ = Clock::now();
    counts_.prompt_seconds = seconds_since(*begun_);
  }
  ++counts_.answer_tokens;
  keep_likelihood(id, logits);
  const bool is_silent = form_ != Form::text && tokenizer_.is_special(id) && !is_reply_mark(tokenizer_.token_bytes(id));
  if (!is_silent) {
    const std::string text = text_after(id);
    bytes_ += text.size();
    if (id == end_think_) parser_.mark_end(bytes_ - marks::kEndThink.size());
    deliver(counts_.answer_tokens <= min_tokens_ ? text : stop_.push(text), false);
  }
  if (stop_.found() != nullptr) stop_text_ = *stop_.found();
  return !stop_text_;
}

void Answering::end_token(uint32_t id, std::span<const float> logits) {
  const std::lock_guard lock(mutex_);
  if (form_ == Form::text) keep_likelihood(id, logits);
}

void Answering::ended(const Result<StopReason>& reason) {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  if (!reason) {
    // A generation that yields to others before it began is reported only to its client.
    if (begun_ || reason.error().kind != ErrorKind::budget) log_(reason.error());
    return writer_->fail(reason.error());
  }
  if (*reason == StopReason::interrupted) return writer_->fail({ErrorKind::cancelled, "the server is going down"});
  tell_echo();  // if nothing had to be read, it has not been sent yet
  if (first_)
    counts_.answer_seconds = seconds_since(*first_);
  else if (begun_)
    counts_.prompt_seconds = seconds_since(*begun_);
  std::string text = stop_.push(detokenizer_.flush());
  text += stop_.finish();  // held-back text that turned out not to begin a stop string
  deliver(text, true);
  writer_->end({.reason = *reason,
                .calls = parser_.calls(),
                .stop_text = std::move(stop_text_),
                .fault = fault(*reason),
                .counts = counts_});
}

std::optional<std::string> Answering::fault(StopReason reason) const {
  const bool is_cut = reason != StopReason::end_token && reason != StopReason::stopped;
  if (is_cut || parser_.calls() == ReplyCalls::broken) return std::nullopt;  // these the client can see by itself
  return check_.fault();
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
  for (const ReplyPart& part : parts) {
    check_.take(part);
    tell(part);
  }
}

void Answering::tell(const ReplyPart& part) {
  told_ = Clock::now();
  writer_->part(part, std::exchange(untold_, {}));
}

}  // namespace dspack::runtime
