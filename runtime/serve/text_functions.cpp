#include "runtime/serve/text_functions.h"

#include <vector>

#include "runtime/serve/request_fields.h"
#include "runtime/text/json_fields.h"

namespace dspack::runtime {
namespace {

// Text that is returned in two JSON fields: both copies, and six bytes for a control character.
constexpr uint64_t kToldTwice = 16;

}  // namespace

std::optional<Result<OrderedJson>> TextFunctions::answer(std::string_view path, std::string_view body,
                                                         const PromptMaker::Asker& asker) const {
  if (path == "/tokenize") return tokenize(body, asker);
  if (path == "/detokenize") return detokenize(body, asker);
  if (path == "/apply-template") return apply_template(body, asker);
  if (path == "/v1/messages/count_tokens") return count_tokens(body, asker);
  return std::nullopt;
}

Result<OrderedJson> TextFunctions::tokenize(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(const auto content, fields.text("content"));
  TRY_ASSIGN(const auto prompt, fields.text("prompt"));
  if (!content && !prompt) return invalid("\"content\" (or \"prompt\") is missing");
  TRY_ASSIGN(const auto begins, fields.flag("add_special"));
  TRY_ASSIGN(const std::vector<uint32_t> tokens,
             prompts_.encode(content ? *content : *prompt, begins.value_or(prompt.has_value()), asker));
  return OrderedJson{{"tokens", tokens}, {"count", tokens.size()}};
}

Result<OrderedJson> TextFunctions::detokenize(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const OrderedJson* tokens = JsonFields(root).find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return invalid("\"tokens\" is not a list");
  std::vector<uint32_t> ids;
  uint64_t bytes = 0;
  for (const OrderedJson& id : *tokens) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= options_.vocab) return invalid("\"tokens\" has no token id");
    ids.push_back(id.get<uint32_t>());
    bytes += text_.tokenizer().token_bytes(ids.back()).size();
  }
  TRY(asker.memory.need(asker.memory.bytes() + bytes * kToldTwice));
  const std::string text = text_.tokenizer().decode(ids, SpecialOutput::keep);
  return OrderedJson{{"content", text}, {"prompt", text}};
}

Result<OrderedJson> TextFunctions::apply_template(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const AnswerRequest request, parse_chat_request(body, options_.sampling));
  TRY_ASSIGN(std::string text, prompts_.render(request, asker));
  TRY(asker.memory.need(asker.memory.bytes() + text.size() * kToldTwice));
  return OrderedJson{{"prompt", std::move(text)}};
}

Result<OrderedJson> TextFunctions::count_tokens(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const AnswerRequest request, parse_messages_request(body, options_.sampling));
  TRY_ASSIGN(const Prompt prompt, prompts_.prompt_of(request, asker));
  if (prompt.at_least) return invalid(context_exceeded(*prompt.at_least, options_.context, false).message);
  return OrderedJson{{"input_tokens", prompt.tokens.size()}};
}

}  // namespace dspack::runtime
