// The answers of /v1/chat/completions and /v1/completions.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <span>
#include <utility>

#include "runtime/serve/answer_writer.h"
#include "runtime/text/json.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

/// A token's bytes as text; different bytes give different texts.
std::string token_name(std::string_view bytes) {
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char c : bytes)
    name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

/// "text_offset" counts code points of the choice's text, as Python's len does, from the character in which the token
/// begins. "top_logprobs" always includes the token itself, besides the most likely ones (up to logprobs + 1, as OpenAI
/// and vLLM); of several tokens with one text the most likely is kept. A token that is not whole characters is written
/// as "bytes:\xe6\xbc", OpenAI's form. Null: unknown, for a prompt's first token.
OrderedJson text_logprobs(std::span<const TokenLikelihood> tokens) {
  OrderedJson names = OrderedJson::array();
  OrderedJson values = OrderedJson::array();
  OrderedJson likeliest = OrderedJson::array();
  OrderedJson offsets = OrderedJson::array();
  for (const TokenLikelihood& token : tokens) {
    names.push_back(token_name(token.text));
    offsets.push_back(token.offset);
    if (!token.is_known) {
      values.push_back(nullptr);
      likeliest.push_back(nullptr);
      continue;
    }
    values.push_back(token.logprob);
    OrderedJson others = OrderedJson::object();
    for (const auto& [text, logprob] : token.likeliest)
      others.emplace(token_name(text), logprob);
    others.emplace(names.back().get_ref<const std::string&>(), token.logprob);
    likeliest.push_back(std::move(others));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(likeliest)},
          {"text_offset", std::move(offsets)}};
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string finish_reason(const AnswerEnd& end) {
  if (end.fault) return "content_filter";
  switch (end.reason) {
    case StopReason::end_token:
    case StopReason::stopped:
      if (end.calls == ReplyCalls::broken) break;
      return end.calls == ReplyCalls::whole ? "tool_calls" : "stop";
    case StopReason::max_tokens:
    case StopReason::context_full:
    case StopReason::interrupted: break;
  }
  return "length";
}

OrderedJson openai_usage(const AnswerCounts& counts) {
  return {{"prompt_tokens", counts.prompt_tokens},
          {"completion_tokens", counts.answer_tokens},
          {"total_tokens", counts.prompt_tokens + counts.answer_tokens},
          {"prompt_tokens_details", {{"cached_tokens", counts.kept_tokens}}}};
}

// Names as in llama-server.
OrderedJson timings(const AnswerCounts& counts) {
  return {{"cache_n", counts.kept_tokens},
          {"prompt_n", counts.prompt_tokens - counts.kept_tokens},
          {"prompt_ms", counts.prompt_seconds * 1e3},
          {"predicted_n", counts.answer_tokens},
          {"predicted_ms", counts.answer_seconds * 1e3},
          {"draft_n", counts.drafted_tokens},
          {"draft_n_accepted", counts.accepted_drafts}};
}

OrderedJson bytes_of(std::string_view text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text)
    bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

/// Logprobs in the form of chat completions.
OrderedJson likelihoods(const std::vector<TokenLikelihood>& tokens) {
  OrderedJson content = OrderedJson::array();
  for (const TokenLikelihood& token : tokens) {
    OrderedJson likeliest = OrderedJson::array();
    for (const auto& [text, logprob] : token.likeliest)
      likeliest.push_back({{"token", text}, {"logprob", logprob}, {"bytes", bytes_of(text)}});
    content.push_back({{"token", token.text},
                       {"logprob", token.logprob},
                       {"bytes", bytes_of(token.text)},
                       {"top_logprobs", std::move(likeliest)}});
  }
  return {{"content", std::move(content)}};
}

/// The reply that all choices of a request share: its frame, pings, and the end of the stream or the whole object.
class OpenAiReply {
 public:
  struct Form {
    std::string id;
    std::string whole, chunk;  // "object"
    bool begins_with_role = false;
  };
  OpenAiReply(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model, Form form)
      : reply_(std::move(reply)),
        streams_(request.streams),
        includes_usage_(request.includes_usage),
        form_(std::move(form)),
        model_(std::move(model)),
        created_(unix_time()),
        left_(size_t{request.prompts()} * request.choices),
        choices_(left_),
        counts_(request.prompts()) {}

  [[nodiscard]] bool streams() const { return streams_; }

  void wait(const AnswerProgress& progress) {
    const std::lock_guard lock(mutex_);
    if (!streams_ || left_ == 0) return;
    begin();
    reply_->write(progress_comment(progress));
  }

  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, 0) == 0) return;
    const ApiError told = api_error(error);
    if (!has_begun_) return send_error(*reply_, Dialect::openai, told);
    const OrderedJson body = {{"error", {{"message", told.message}, {"type", told.type}, {"code", told.status}}}};
    reply_->write(fmt::format("data: {}\n\n", json_text(body)));
    reply_->end();
  }

  /// Sends a part of a choice, in a stream.
  void chunk(OrderedJson choice) {
    const std::lock_guard lock(mutex_);
    if (left_ == 0) return;
    begin();
    write(std::move(choice), {});
  }

  /// Takes the last part of a choice in a stream, or a whole choice.
  void end(OrderedJson choice, const AnswerCounts& counts) {
    const std::lock_guard lock(mutex_);
    if (left_ == 0) return;
    const auto index = choice["index"].get<size_t>();
    AnswerCounts& of_prompt = counts_[index / (choices_.size() / counts_.size())];
    of_prompt = sum_of(of_prompt, counts);
    const bool is_last = --left_ == 0;
    if (!streams_) {
      choices_[index] = std::move(choice);
      if (!is_last) return;
      OrderedJson body = frame(form_.whole);
      body["choices"] = std::move(choices_);
      body["usage"] = openai_usage(total());
      body["timings"] = timings(total());
      return reply_->send(200, "application/json", json_text(body));
    }
    begin();
    write(std::move(choice), is_last ? timings(total()) : OrderedJson());
    if (!is_last) return;
    if (includes_usage_) {
      OrderedJson last = frame(form_.chunk);
      last["choices"] = OrderedJson::array();
      last["usage"] = openai_usage(total());
      reply_->write(fmt::format("data: {}\n\n", json_text(last)));
    }
    reply_->write("data: [DONE]\n\n");
    reply_->end();
  }

 private:
  /// Adds a choice of the same prompt, whose tokens count once.
  static AnswerCounts sum_of(const AnswerCounts& sum, const AnswerCounts& next) {
    if (sum.prompt_tokens == 0) return next;
    AnswerCounts both = sum;
    both.kept_tokens = std::min(sum.kept_tokens, next.kept_tokens);
    both.answer_tokens += next.answer_tokens;
    both.drafted_tokens += next.drafted_tokens;
    both.accepted_drafts += next.accepted_drafts;
    both.prompt_seconds = std::max(sum.prompt_seconds, next.prompt_seconds);
    both.answer_seconds = std::max(sum.answer_seconds, next.answer_seconds);
    return both;
  }

  [[nodiscard]] AnswerCounts total() const {
    AnswerCounts all;
    for (const AnswerCounts& each : counts_) {
      all.prompt_tokens += each.prompt_tokens;
      all.kept_tokens += each.kept_tokens;
      all.answer_tokens += each.answer_tokens;
      all.drafted_tokens += each.drafted_tokens;
      all.accepted_drafts += each.accepted_drafts;
      all.prompt_seconds = std::max(all.prompt_seconds, each.prompt_seconds);
      all.answer_seconds = std::max(all.answer_seconds, each.answer_seconds);
    }
    return all;
  }

  [[nodiscard]] OrderedJson frame(std::string_view object) const {
    return {{"id", form_.id}, {"object", object}, {"created", created_}, {"model", model_}};
  }

  void begin() {
    if (std::exchange(has_begun_, true)) return;
    reply_->begin_stream("text/event-stream; charset=utf-8");
    if (!form_.begins_with_role) return;
    for (size_t index = 0; index < choices_.size(); ++index)
      write({{"index", index}, {"delta", {{"role", "assistant"}, {"content", ""}}}, {"finish_reason", nullptr}}, {});
  }

  void write(OrderedJson choice, OrderedJson timings) {
    OrderedJson body = frame(form_.chunk);
    body["choices"] = OrderedJson::array({std::move(choice)});
    if (includes_usage_) body["usage"] = nullptr;
    if (!timings.is_null()) body["timings"] = std::move(timings);
    reply_->write(fmt::format("data: {}\n\n", json_text(body)));
  }

  std::mutex mutex_;
  std::shared_ptr<HttpReply> reply_;
  bool streams_;
  bool includes_usage_;
  bool has_begun_ = false;
  Form form_;
  std::string model_;
  int64_t created_;
  size_t left_;  // choices that have not ended
  std::vector<OrderedJson> choices_;
  std::vector<AnswerCounts> counts_;  // per prompt
};

/// Base of the writers of chat and text choices.
class ChoiceWriter : public AnswerWriter {
 public:
  ChoiceWriter(std::shared_ptr<OpenAiReply> reply, const AnswerRequest& request, uint32_t index)
      : reply_(std::move(reply)), index_(index), tells_logprobs_(request.top_logprobs.has_value()) {}

  void waiting(const AnswerProgress& progress) override { reply_->wait(progress); }
  void fail(const Error& error) override { reply_->fail(error); }

 protected:
  [[nodiscard]] OpenAiReply& reply() { return *reply_; }
  [[nodiscard]] uint32_t index() const { return index_; }
  [[nodiscard]] bool tells_logprobs() const { return tells_logprobs_; }

 private:
  std::shared_ptr<OpenAiReply> reply_;
  uint32_t index_;
  bool tells_logprobs_;
};

class ChatWriter final : public ChoiceWriter {
 public:
  using ChoiceWriter::ChoiceWriter;

  void part(const ReplyPart& part, std::vector<TokenLikelihood> tokens) override {
    OrderedJson delta = OrderedJson::object();
    switch (part.kind) {
      case ReplyPart::Kind::reasoning:
        delta["reasoning_content"] = part.text;
        reasoning_ += part.text;
        break;
      case ReplyPart::Kind::content:
        if (!part.text.empty()) delta["content"] = part.text;
        content_ += part.text;
        break;
      case ReplyPart::Kind::call: {
        const std::string id = part.id.empty() ? fresh_id("call_") : part.id;
        calls_.push_back({{"id", id}, {"type", "function"}, {"function", {{"name", part.text}, {"arguments", ""}}}});
        OrderedJson call = calls_.back();
        call["index"] = calls_.size() - 1;
        delta["tool_calls"] = OrderedJson::array({std::move(call)});
        break;
      }
      case ReplyPart::Kind::arguments: {
        auto& arguments = calls_.back()["function"]["arguments"].get_ref<std::string&>();
        arguments += part.text;
        delta["tool_calls"] =
            OrderedJson::array({{{"index", calls_.size() - 1}, {"function", {{"arguments", part.text}}}}});
        break;
      }
    }
    if (reply().streams()) {
      OrderedJson choice = {{"index", index()}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
      if (tells_logprobs()) choice["logprobs"] = likelihoods(tokens);
      reply().chunk(std::move(choice));
    } else {
      tokens_.insert(tokens_.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
    }
  }

  void end(const AnswerEnd& end) override {
    if (reply().streams()) {
      OrderedJson delta = OrderedJson::object();
      if (end.fault) delta["refusal"] = *end.fault;
      return reply().end({{"index", index()}, {"delta", std::move(delta)}, {"finish_reason", finish_reason(end)}},
                         end.counts);
    }
    OrderedJson message = {{"role", "assistant"}, {"content", content_}};
    if (end.fault) message["refusal"] = *end.fault;
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    if (!calls_.empty()) {
      message["tool_calls"] = calls_;
      if (content_.empty()) message["content"] = nullptr;
    }
    OrderedJson choice = {{"index", index()}, {"message", std::move(message)}};
    if (tells_logprobs()) choice["logprobs"] = likelihoods(tokens_);
    choice["finish_reason"] = finish_reason(end);
    reply().end(std::move(choice), end.counts);
  }

 private:
  std::string reasoning_;
  std::string content_;
  OrderedJson calls_ = OrderedJson::array();
  std::vector<TokenLikelihood> tokens_;
};

class TextWriter final : public ChoiceWriter {
 public:
  using ChoiceWriter::ChoiceWriter;

  void part(const ReplyPart& part, std::vector<TokenLikelihood> tokens) override {
    if (reply().streams()) {
      OrderedJson choice = {{"index", index()}, {"text", part.text}, {"finish_reason", nullptr}};
      if (tells_logprobs()) choice["logprobs"] = text_logprobs(tokens);
      return reply().chunk(std::move(choice));
    }
    text_ += part.text;
    tokens_.insert(tokens_.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
  }

  void end(const AnswerEnd& end) override {
    OrderedJson choice = {{"index", index()}, {"text", reply().streams() ? "" : text_}};
    if (reply().streams()) {
      choice["finish_reason"] = finish_reason(end);
      return reply().end(std::move(choice), end.counts);
    }
    if (tells_logprobs()) choice["logprobs"] = text_logprobs(tokens_);
    choice["finish_reason"] = finish_reason(end);
    reply().end(std::move(choice), end.counts);
  }

 private:
  std::string text_;
  std::vector<TokenLikelihood> tokens_;
};

template <class Writer>
AnswerWriters make_writers(const std::shared_ptr<OpenAiReply>& reply, const AnswerRequest& request) {
  AnswerWriters writers;
  for (uint32_t index = 0; index < request.prompts() * request.choices; ++index)
    writers.push_back(std::make_unique<Writer>(reply, request, index));
  return writers;
}

}  // namespace

AnswerWriters make_chat_writers(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model) {
  const auto shared = std::make_shared<OpenAiReply>(std::move(reply), request, std::move(model),
                                                    OpenAiReply::Form{.id = fresh_id("chatcmpl-"),
                                                                      .whole = "chat.completion",
                                                                      .chunk = "chat.completion.chunk",
                                                                      .begins_with_role = true});
  return make_writers<ChatWriter>(shared, request);
}

AnswerWriters make_text_writers(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model) {
  const auto shared = std::make_shared<OpenAiReply>(
      std::move(reply), request, std::move(model),
      OpenAiReply::Form{.id = fresh_id("cmpl-"), .whole = "text_completion", .chunk = "text_completion"});
  return make_writers<TextWriter>(shared, request);
}

}  // namespace dspack::runtime
