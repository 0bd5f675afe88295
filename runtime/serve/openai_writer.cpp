// The answers of /v1/chat/completions and /v1/completions.
#include <fmt/format.h>

#include <chrono>

#include "runtime/serve/answer_writer.h"
#include "runtime/serve/json_fields.h"

namespace dspack::runtime {
namespace {

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string finish_reason(const AnswerEnd& end) {
  switch (end.reason) {
    case StopReason::end_token:
    case StopReason::stopped: return end.calls ? "tool_calls" : "stop";
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

// As llama-server names them.
OrderedJson timings(const AnswerCounts& counts) {
  return {{"cache_n", counts.kept_tokens},
          {"prompt_n", counts.prompt_tokens - counts.kept_tokens},
          {"prompt_ms", counts.prompt_seconds * 1e3},
          {"predicted_n", counts.answer_tokens},
          {"predicted_ms", counts.answer_seconds * 1e3}};
}

OrderedJson bytes_of(std::string_view text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text)
    bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

/// Of chat completions.
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

/// What both forms share: the frame of a chunk, the end of a stream, pings.
class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model, std::string id,
               std::string object)
      : reply_(std::move(reply)),
        streams_(request.streams),
        includes_usage_(request.includes_usage),
        tells_logprobs_(request.top_logprobs.has_value()),
        id_(std::move(id)),
        object_(std::move(object)),
        model_(std::move(model)),
        created_(unix_time()) {}

  void waiting(uint32_t read, uint32_t total) override {
    if (!streams_) return;
    begin();
    reply_->write(fmt::format(": reading the prompt, {} of {} tokens\n\n", read, total));
  }

  void fail(const Error& error) override {
    const ApiError told = api_error(error);
    if (!has_begun_) return send_openai_error(*reply_, told);
    const OrderedJson body = {{"error", {{"message", told.message}, {"type", told.type}, {"code", told.status}}}};
    reply_->write(fmt::format("data: {}\n\n", json_text(body)));
    reply_->end();
  }

 protected:
  /// Once, before the first event of a stream.
  virtual void greet() {}

  void begin() {
    if (has_begun_) return;
    has_begun_ = true;
    reply_->begin_stream("text/event-stream; charset=utf-8");
    greet();
  }

  [[nodiscard]] OrderedJson frame(std::string_view object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
  }

  void chunk(OrderedJson choice) {
    OrderedJson body = frame(object_);
    body["choices"] = OrderedJson::array({std::move(choice)});
    if (includes_usage_) body["usage"] = nullptr;
    reply_->write(fmt::format("data: {}\n\n", json_text(body)));
  }

  void end_stream(OrderedJson choice, const AnswerCounts& counts) {
    begin();
    OrderedJson body = frame(object_);
    body["choices"] = OrderedJson::array({std::move(choice)});
    if (includes_usage_) body["usage"] = nullptr;
    body["timings"] = timings(counts);
    reply_->write(fmt::format("data: {}\n\n", json_text(body)));
    if (includes_usage_) {
      OrderedJson last = frame(object_);
      last["choices"] = OrderedJson::array();
      last["usage"] = openai_usage(counts);
      reply_->write(fmt::format("data: {}\n\n", json_text(last)));
    }
    reply_->write("data: [DONE]\n\n");
    reply_->end();
  }

  void send_whole(std::string_view object, OrderedJson choice, const AnswerCounts& counts) {
    OrderedJson body = frame(object);
    body["choices"] = OrderedJson::array({std::move(choice)});
    body["usage"] = openai_usage(counts);
    body["timings"] = timings(counts);
    reply_->send(200, "application/json", json_text(body));
  }

  [[nodiscard]] bool streams() const { return streams_; }
  [[nodiscard]] bool tells_logprobs() const { return tells_logprobs_; }

 private:
  std::shared_ptr<HttpReply> reply_;
  bool streams_;
  bool includes_usage_;
  bool tells_logprobs_;
  bool has_begun_ = false;
  std::string id_;
  std::string object_;
  std::string model_;
  int64_t created_;
};

class ChatWriter final : public OpenAiWriter {
 public:
  ChatWriter(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model)
      : OpenAiWriter(std::move(reply), request, std::move(model), fresh_id("chatcmpl-"), "chat.completion.chunk") {}

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
    if (streams()) {
      begin();
      OrderedJson choice = {{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", nullptr}};
      if (tells_logprobs()) choice["logprobs"] = likelihoods(tokens);
      chunk(std::move(choice));
    } else {
      tokens_.insert(tokens_.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
    }
  }

  void end(const AnswerEnd& end) override {
    if (streams()) {
      return end_stream({{"index", 0}, {"delta", OrderedJson::object()}, {"finish_reason", finish_reason(end)}},
                        end.counts);
    }
    OrderedJson message = {{"role", "assistant"}, {"content", content_}};
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    if (!calls_.empty()) {
      message["tool_calls"] = calls_;
      if (content_.empty()) message["content"] = nullptr;
    }
    OrderedJson choice = {{"index", 0}, {"message", std::move(message)}};
    if (tells_logprobs()) choice["logprobs"] = likelihoods(tokens_);
    choice["finish_reason"] = finish_reason(end);
    send_whole("chat.completion", std::move(choice), end.counts);
  }

 private:
  void greet() override {
    chunk({{"index", 0}, {"delta", {{"role", "assistant"}, {"content", ""}}}, {"finish_reason", nullptr}});
  }

  std::string reasoning_;
  std::string content_;
  OrderedJson calls_ = OrderedJson::array();
  std::vector<TokenLikelihood> tokens_;
};

class TextWriter final : public OpenAiWriter {
 public:
  TextWriter(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model)
      : OpenAiWriter(std::move(reply), request, std::move(model), fresh_id("cmpl-"), "text_completion") {}

  void part(const ReplyPart& part, std::vector<TokenLikelihood> tokens) override {
    if (streams()) {
      begin();
      OrderedJson choice = {{"index", 0}, {"text", part.text}, {"finish_reason", nullptr}};
      if (tells_logprobs()) choice["logprobs"] = logprobs(tokens);
      return chunk(std::move(choice));
    }
    text_ += part.text;
    tokens_.insert(tokens_.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
  }

  void end(const AnswerEnd& end) override {
    if (streams()) return end_stream({{"index", 0}, {"text", ""}, {"finish_reason", finish_reason(end)}}, end.counts);
    OrderedJson choice = {{"index", 0}, {"text", text_}};
    if (tells_logprobs()) choice["logprobs"] = logprobs(tokens_);
    choice["finish_reason"] = finish_reason(end);
    send_whole("text_completion", std::move(choice), end.counts);
  }

 private:
  /// In the older form, of completions.
  static OrderedJson logprobs(const std::vector<TokenLikelihood>& tokens) {
    OrderedJson texts = OrderedJson::array();
    OrderedJson values = OrderedJson::array();
    OrderedJson likeliest = OrderedJson::array();
    for (const TokenLikelihood& token : tokens) {
      texts.push_back(token.text);
      values.push_back(token.logprob);
      OrderedJson others = OrderedJson::object();
      for (const auto& [text, logprob] : token.likeliest)
        others[text] = logprob;
      likeliest.push_back(std::move(others));
    }
    return {
        {"tokens", std::move(texts)}, {"token_logprobs", std::move(values)}, {"top_logprobs", std::move(likeliest)}};
  }

  std::string text_;
  std::vector<TokenLikelihood> tokens_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                               std::string model) {
  return std::make_unique<ChatWriter>(std::move(reply), request, std::move(model));
}

std::unique_ptr<AnswerWriter> make_text_writer(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                               std::string model) {
  return std::make_unique<TextWriter>(std::move(reply), request, std::move(model));
}

}  // namespace dspack::runtime
