// The answer of Anthropic's /v1/messages (https://docs.anthropic.com/en/docs/build-with-claude/streaming).
#include <fmt/format.h>

#include <utility>

#include "runtime/serve/answer_writer.h"
#include "runtime/text/call_arguments.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

std::string stop_reason(const AnswerEnd& end) {
  if (end.fault) return "refusal";
  if (end.stop_text) return "stop_sequence";
  switch (end.reason) {
    case StopReason::end_token:
    case StopReason::stopped:
      if (end.calls == ReplyCalls::broken) break;
      return end.calls == ReplyCalls::whole ? "tool_use" : "end_turn";
    case StopReason::max_tokens:
    case StopReason::context_full:
    case StopReason::interrupted: break;
  }
  return "max_tokens";
}

OrderedJson stop_details(const AnswerEnd& end) {
  if (!end.fault) return nullptr;
  return {{"type", "refusal"}, {"category", nullptr}, {"explanation", *end.fault}};
}

OrderedJson anthropic_usage(const AnswerCounts& counts) {
  return {{"input_tokens", counts.prompt_tokens - counts.kept_tokens},
          {"cache_read_input_tokens", counts.kept_tokens},
          {"output_tokens", counts.answer_tokens}};
}

/// An object with one more member whose value is JSON text, kept as it is: parsing it would lose digits of numbers.
std::string with_member(const OrderedJson& object, std::string_view name, std::string_view json) {
  std::string text = json_text(object);
  text.pop_back();
  return fmt::format("{},\"{}\":{}}}", text, name, json);
}

class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model,
                 uint32_t prompt_tokens)
      : reply_(std::move(reply)),
        streams_(request.streams),
        id_(fresh_id("msg_")),
        model_(std::move(model)),
        prompt_tokens_(prompt_tokens) {}

  void waiting(const AnswerProgress& /*progress*/) override {
    if (!streams_) return;
    begin();
    event("ping", {{"type", "ping"}});
  }

  void part(const ReplyPart& part, std::vector<TokenLikelihood> /*tokens*/) override {
    if (part.kind == ReplyPart::Kind::content && part.text.empty()) return;
    const bool is_new = blocks_.empty() || part.kind == ReplyPart::Kind::call ||
                        (part.kind != ReplyPart::Kind::arguments && part.kind != kind_);
    if (is_new) open(part);
    kind_ = part.kind;
    if (part.kind == ReplyPart::Kind::call) return;
    texts_.back() += part.text;
    if (!streams_) return;
    OrderedJson delta;
    switch (part.kind) {
      case ReplyPart::Kind::reasoning: delta = {{"type", "thinking_delta"}, {"thinking", part.text}}; break;
      case ReplyPart::Kind::content: delta = {{"type", "text_delta"}, {"text", part.text}}; break;
      case ReplyPart::Kind::call:
      case ReplyPart::Kind::arguments: delta = {{"type", "input_json_delta"}, {"partial_json", part.text}}; break;
    }
    event("content_block_delta",
          {{"type", "content_block_delta"}, {"index", blocks_.size() - 1}, {"delta", std::move(delta)}});
  }

  void end(const AnswerEnd& end) override {
    const OrderedJson stop_text = end.stop_text ? OrderedJson(*end.stop_text) : OrderedJson();
    if (streams_) {
      begin();
      close();
      event("message_delta",
            {{"type", "message_delta"},
             {"delta",
              {{"stop_reason", stop_reason(end)}, {"stop_sequence", stop_text}, {"stop_details", stop_details(end)}}},
             {"usage", anthropic_usage(end.counts)}});
      event("message_stop", {{"type", "message_stop"}});
      return reply_->end();
    }
    OrderedJson body = message();
    body["stop_reason"] = stop_reason(end);
    body["stop_sequence"] = stop_text;
    body["stop_details"] = stop_details(end);
    body["usage"] = anthropic_usage(end.counts);
    std::string content;
    for (size_t i = 0; i < blocks_.size(); ++i)
      content += (i == 0 ? "" : ",") + whole_block(i);
    reply_->send(200, "application/json", with_member(body, "content", "[" + content + "]"));
  }

  void fail(const Error& error) override {
    const ApiError told = api_error(error);
    if (!has_begun_) return send_error(*reply_, Dialect::anthropic, told);
    event("error", {{"type", "error"}, {"error", {{"type", told.type}, {"message", told.message}}}});
    reply_->end();
  }

 private:
  /// The message without content.
  [[nodiscard]] OrderedJson message() const {
    return {{"id", id_},       {"type", "message"},      {"role", "assistant"},
            {"model", model_}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  }

  [[nodiscard]] std::string whole_block(size_t i) const {
    OrderedJson block = blocks_[i];
    const std::string& text = texts_[i];
    if (block["type"] == "tool_use") {
      block.erase("input");
      if (is_json_object(text)) return with_member(block, "input", text);
      // The API has no form for a call that was cut: it becomes text.
      return json_text({{"type", "text"}, {"text", block["name"].get<std::string>() + " " + text}});
    }
    block[block["type"] == "text" ? "text" : "thinking"] = text;
    return json_text(block);
  }

  void event(std::string_view name, const OrderedJson& body) {
    reply_->write(fmt::format("event: {}\ndata: {}\n\n", name, json_text(body)));
  }

  void begin() {
    if (has_begun_) return;
    has_begun_ = true;
    reply_->begin_stream("text/event-stream; charset=utf-8");
    OrderedJson body = message();
    body["content"] = OrderedJson::array();
    // The cached part may not be known yet; the message's end reports it.
    body["usage"] = anthropic_usage({.prompt_tokens = prompt_tokens_});
    event("message_start", {{"type", "message_start"}, {"message", std::move(body)}});
  }

  void open(const ReplyPart& part) {
    OrderedJson block;
    switch (part.kind) {
      case ReplyPart::Kind::reasoning: block = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}; break;
      case ReplyPart::Kind::content: block = {{"type", "text"}, {"text", ""}}; break;
      case ReplyPart::Kind::call:
      case ReplyPart::Kind::arguments:
        block = {{"type", "tool_use"},
                 {"id", part.id.empty() ? fresh_id("toolu_") : part.id},
                 {"name", part.text},
                 {"input", OrderedJson::object()}};
        break;
    }
    if (streams_) {
      begin();
      close();
      event("content_block_start",
            {{"type", "content_block_start"}, {"index", blocks_.size()}, {"content_block", block}});
    }
    blocks_.push_back(std::move(block));
    texts_.emplace_back();
    is_open_ = true;
  }

  void close() {
    if (!std::exchange(is_open_, false)) return;
    event("content_block_stop", {{"type", "content_block_stop"}, {"index", blocks_.size() - 1}});
  }

  std::shared_ptr<HttpReply> reply_;
  bool streams_;
  bool has_begun_ = false;
  bool is_open_ = false;
  std::string id_;
  std::string model_;
  uint32_t prompt_tokens_;
  ReplyPart::Kind kind_ = ReplyPart::Kind::content;
  std::vector<OrderedJson> blocks_;
  std::vector<std::string> texts_;  // text of each block
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                                   std::string model, uint32_t prompt_tokens) {
  return std::make_unique<MessagesWriter>(std::move(reply), request, std::move(model), prompt_tokens);
}

}  // namespace dspack::runtime
