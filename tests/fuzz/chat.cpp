// tokenizer_config.json, and a conversation in every template that dsrun brings along. Input: the JSON on the first
// line; then either a conversation as JSON, or a message a line, its role by the first character: s(ystem), u(ser),
// a(ssistant), t(ool), c(all of a tool), n (no content).
#include <string>

#include "runtime/text/builtin_templates.h"
#include "runtime/text/chat_message.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/json.h"
#include "runtime/text/tokenizer_config.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::ChatMessage;
using runtime::ChatTemplate;
using runtime::Role;

namespace {

ChatMessage message_of(std::string_view line) {
  const std::string text(line.substr(line.empty() ? 0 : 1));
  switch (line.empty() ? 'u' : line.front()) {
    case 's': return {.role = Role::system, .content = text};
    case 'a': return {.role = Role::assistant, .content = text};
    case 't': return {.role = Role::tool, .content = text};
    case 'c': return {.role = Role::assistant, .tool_calls = {{{.name = text, .arguments = "{}"}}}};
    case 'n': return {.role = Role::user};
    default: return {.role = Role::user, .content = text};
  }
}

// DeepSeek-V3's template leaves nothing out but calls beside content.
void check_all_in_order(const std::vector<ChatMessage>& messages, const runtime::RenderOptions& options) {
  const auto text = ChatTemplate::named("deepseek-v3")->render(messages, options);
  if (!text) return;
  DSPACK_CHECK(text->starts_with(options.bos_token), *text);
  size_t at = options.bos_token.size();
  for (const ChatMessage& message : messages) {
    DSPACK_CHECK(message.content || message.role == Role::assistant, "a message without content is not refused");
    if (!message.content) continue;
    const bool at_the_front = message.role == Role::system;
    const size_t found = text->find(*message.content, at_the_front ? 0 : at);
    DSPACK_CHECK(found != std::string::npos, "a message is missing or out of order");
    if (!at_the_front) at = found + message.content->size();
  }
}

// Asking for an answer adds to a text and changes nothing of it, except where Kimi-K2-0905 leaves the last message
// open.
void check_question(std::string_view name, const std::vector<ChatMessage>& messages, runtime::RenderOptions options) {
  const auto chat = ChatTemplate::named(name);
  options.add_generation_prompt = false;
  const auto history = chat->render(messages, options);
  options.add_generation_prompt = true;
  const auto question = chat->render(messages, options);
  DSPACK_CHECK(history.has_value() == question.has_value(), name);
  if (!history) return fuzz::check_refusal(question.error());
  DSPACK_CHECK(question->starts_with(*history), name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const auto config = runtime::TokenizerConfig::from_json(fuzz::take(text, '\n'));
  runtime::RenderOptions options{.bos_token = "<bos>", .eos_token = "<eos>"};
  if (!config) {
    fuzz::check_refusal(config.error());
  } else {
    options.bos_token = config->bos_token.value_or("");
    if (const auto own = ChatTemplate::compile(config->chat_template.value_or("")); !own) {
      fuzz::check_refusal(own.error());
    }
  }
  std::vector<ChatMessage> messages;
  if (text.starts_with('[') || text.starts_with('{')) {
    auto conversation = runtime::parse_conversation(text);
    if (!conversation) {
      fuzz::check_refusal(conversation.error());
      return 0;
    }
    messages = std::move(conversation->messages);
    options.tools = std::move(conversation->tools);
    const std::string tools = runtime::python_json(options.tools, false);
    DSPACK_CHECK(runtime::OrderedJson::parse(tools) == options.tools, tools);
  } else {
    for (const std::string_view line : fuzz::split(text, '\n'))
      messages.push_back(message_of(line));
  }
  check_all_in_order(messages, options);
  for (const std::string& name : runtime::builtin_template_names()) {
    for (const bool thinking : {true, false}) {
      options.arguments = runtime::thinking_arguments(thinking);
      check_question(name, messages, options);
    }
  }
  return 0;
}
