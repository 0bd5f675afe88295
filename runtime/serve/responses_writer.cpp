// The answer of OpenAI's /v1/responses (https://platform.openai.com/docs/api-reference/responses-streaming).
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "runtime/serve/answer_writer.h"
#include "runtime/text/call_arguments.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(std::shared_ptr<HttpReply> reply, const AnswerRequest& request, std::string model)
      : reply_(std::move(reply)),
        streams_(request.streams),
        id_(fresh_id("resp_")),
        model_(std::move(model)),
        created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                     .count()) {}

  void waiting(const AnswerProgress& progress) override {
    if (!streams_) return;
    begin();
    reply_->write(progress_comment(progress));
  }

  void part(const ReplyPart& part, std::vector<TokenLikelihood> /*tokens*/) override {
    if (part.kind == ReplyPart::Kind::content && part.text.empty()) return;
    const bool is_new = items_.empty() || part.kind == ReplyPart::Kind::call ||
                        (part.kind != ReplyPart::Kind::arguments && part.kind != kind_);
    if (is_new) open(part);
    kind_ = part.kind;
    if (part.kind == ReplyPart::Kind::call) return;
    text_ += part.text;
    event(part.kind == ReplyPart::Kind::reasoning ? "response.reasoning_text.delta"
          : part.kind == ReplyPart::Kind::content ? "response.output_text.delta"
                                                  : "response.function_call_arguments.delta",
          with_place({{"delta", part.text}}));
  }

  void end(const AnswerEnd& end) override {
    close();
    const bool is_whole = !end.fault && end.calls != ReplyCalls::broken &&
                          (end.reason == StopReason::end_token || end.reason == StopReason::stopped);
    OrderedJson body = response(is_whole ? "completed" : "incomplete");
    if (end.fault)
      body["incomplete_details"] = {{"reason", "content_filter"}, {"explanation", *end.fault}};
    else if (!is_whole)
      body["incomplete_details"] = {{"reason", "max_output_tokens"}};
    const AnswerCounts& counts = end.counts;
    body["usage"] = {{"input_tokens", counts.prompt_tokens},
                     {"input_tokens_details", {{"cached_tokens", counts.kept_tokens}}},
                     {"output_tokens", counts.answer_tokens},
                     {"output_tokens_details", {{"reasoning_tokens", 0}}},
                     {"total_tokens", counts.prompt_tokens + counts.answer_tokens}};
    if (!streams_) return reply_->send(200, "application/json", json_text(body));
    event(is_whole ? "response.completed" : "response.incomplete", {{"response", std::move(body)}});
    reply_->end();
  }

  void fail(const Error& error) override {
    const ApiError told = api_error(error);
    if (!has_begun_) return send_error(*reply_, Dialect::responses, told);
    OrderedJson body = response("failed");
    body["error"] = {{"code", "server_error"}, {"message", told.message}};
    event("response.failed", {{"response", std::move(body)}});
    reply_->end();
  }

 private:
  [[nodiscard]] OrderedJson response(std::string_view status) const {
    return {{"id", id_},
            {"object", "response"},
            {"created_at", created_},
            {"status", status},
            {"model", model_},
            {"output", items_},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"tools", OrderedJson::array()},
            {"tool_choice", "auto"},
            {"parallel_tool_calls", true}};
  }

  void event(std::string_view name, OrderedJson body) {
    if (!streams_) return;
    begin();
    body["type"] = name;
    body["sequence_number"] = number_++;
    reply_->write(fmt::format("event: {}\ndata: {}\n\n", name, json_text(body)));
  }

  void begin() {
    if (std::exchange(has_begun_, true)) return;
    reply_->begin_stream("text/event-stream; charset=utf-8");
    event("response.created", {{"response", response("in_progress")}});
    event("response.in_progress", {{"response", response("in_progress")}});
  }

  /// Adds the open item's id and indices.
  [[nodiscard]] OrderedJson with_place(OrderedJson body) const {
    body["item_id"] = items_.back()["id"];
    body["output_index"] = items_.size() - 1;
    if (items_.back()["type"] == "function_call") return body;
    body["content_index"] = 0;
    if (items_.back()["type"] == "message") body["logprobs"] = OrderedJson::array();
    return body;
  }

  [[nodiscard]] OrderedJson content() const {
    if (items_.back()["type"] == "reasoning") return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", OrderedJson::array()},
            {"logprobs", OrderedJson::array()}};
  }

  void open(const ReplyPart& part) {
    if (streams_) begin();  // before the first item
    close();
    switch (part.kind) {
      case ReplyPart::Kind::reasoning:
        items_.push_back({{"type", "reasoning"},
                          {"id", fresh_id("rs_")},
                          {"status", "in_progress"},
                          {"summary", OrderedJson::array()},
                          {"content", OrderedJson::array()}});
        break;
      case ReplyPart::Kind::content:
        items_.push_back({{"type", "message"},
                          {"id", fresh_id("msg_")},
                          {"status", "in_progress"},
                          {"role", "assistant"},
                          {"content", OrderedJson::array()}});
        break;
      case ReplyPart::Kind::call:
      case ReplyPart::Kind::arguments:
        items_.push_back({{"type", "function_call"},
                          {"id", fresh_id("fc_")},
                          {"status", "in_progress"},
                          {"call_id", part.id.empty() ? fresh_id("call_") : part.id},
                          {"name", part.text},
                          {"arguments", ""}});
        break;
    }
    text_.clear();
    is_open_ = true;
    event("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", items_.back()}});
    if (part.kind == ReplyPart::Kind::reasoning || part.kind == ReplyPart::Kind::content) {
      event("response.content_part.added", with_place({{"part", content()}}));
    }
  }

  void close() {
    if (!std::exchange(is_open_, false)) return;
    OrderedJson& item = items_.back();
    item["status"] = "completed";
    if (item["type"] == "function_call") {
      if (!is_json_object(text_)) item["status"] = "incomplete";
      item["arguments"] = text_;
      event("response.function_call_arguments.done", with_place({{"arguments", text_}, {"name", item["name"]}}));
    } else {
      event(item["type"] == "message" ? "response.output_text.done" : "response.reasoning_text.done",
            with_place({{"text", text_}}));
      event("response.content_part.done", with_place({{"part", content()}}));
      item["content"] = OrderedJson::array({content()});
    }
    event("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item}});
  }

  std::shared_ptr<HttpReply> reply_;
  bool streams_;
  bool has_begun_ = false;
  bool is_open_ = false;
  std::string id_;
  std::string model_;
  int64_t created_;
  uint64_t number_ = 0;  // number of the next event
  ReplyPart::Kind kind_ = ReplyPart::Kind::content;
  OrderedJson items_ = OrderedJson::array();
  std::string text_;  // text of the open item
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                                    std::string model) {
  return std::make_unique<ResponsesWriter>(std::move(reply), request, std::move(model));
}

}  // namespace dspack::runtime
