// tokenizer_config.json, and a conversation in DeepSeek-V3's template. Input: the JSON on the first line; then a
// message a line, its role by the first character: s(ystem), u(ser), a(ssistant), t(ool), c(all of a tool), n (no
// content).
#include <string>

#include "runtime/text/chat_deepseek_v3.h"
#include "runtime/text/tokenizer_config.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::ChatMessage;
using runtime::Role;

namespace {

ChatMessage message_of(std::string_view line) {
  const std::string text(line.substr(line.empty() ? 0 : 1));
  switch (line.empty() ? 'u' : line.front()) {
    case 's': return {.role = Role::system, .content = text, .tool_calls = {}};
    case 'a': return {.role = Role::assistant, .content = text, .tool_calls = {}};
    case 't': return {.role = Role::tool, .content = text, .tool_calls = {}};
    case 'c': return {.role = Role::assistant, .content = {}, .tool_calls = {{"function", text, "{}"}}};
    case 'n': return {.role = Role::user, .content = {}, .tool_calls = {}};
    default: return {.role = Role::user, .content = text, .tool_calls = {}};
  }
}

void check_conversation(const std::vector<ChatMessage>& messages, const runtime::RenderOptions& options) {
  const auto text = runtime::render_deepseek_v3(messages, options);
  bool complete = true;
  for (const ChatMessage& message : messages)
    complete = complete && (message.content || message.role == Role::assistant);
  DSPACK_CHECK(text.has_value() == complete, "only a message without content is refused");
  if (!text) {
    fuzz::check_refusal(text.error());
    return;
  }
  DSPACK_CHECK(text->starts_with(options.bos_token), *text);
  size_t at = options.bos_token.size();
  for (const ChatMessage& message : messages) {
    if (!message.content) continue;
    const bool at_the_front = message.role == Role::system;
    const size_t found = text->find(*message.content, at_the_front ? 0 : at);
    DSPACK_CHECK(found != std::string::npos, "a message is missing or out of order");
    if (!at_the_front) at = found + message.content->size();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const auto config = runtime::TokenizerConfig::from_json(fuzz::take(text, '\n'));
  std::string bos = "<bos>";
  if (!config) {
    fuzz::check_refusal(config.error());
  } else {
    bos = config->bos_token.value_or("");
    const auto known = runtime::ChatTemplate::recognise(config->chat_template.value_or(""));
    if (!known) fuzz::check_refusal(known.error());
  }
  std::vector<ChatMessage> messages;
  for (const std::string_view line : fuzz::split(text, '\n'))
    messages.push_back(message_of(line));
  for (const bool prompt : {true, false})
    check_conversation(messages, {.bos_token = bos, .add_generation_prompt = prompt});
  return 0;
}
