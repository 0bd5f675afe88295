// The messages of a saved chat. Input: the text that lies beside the rows of its KV cache.
#include "runtime/cli/saved_chat.h"

#include "tests/fuzz/target.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto chat = runtime::parse_saved_messages(fuzz::as_text(data, size));
  if (!chat) {
    fuzz::check_refusal(chat.error());
    return 0;
  }
  DSPACK_CHECK(chat->messages.size() % 2 == 0, "a question without an answer");
  for (size_t i = 0; i < chat->messages.size(); ++i) {
    const runtime::ChatMessage& message = chat->messages[i];
    DSPACK_CHECK(message.role == (i % 2 == 0 ? runtime::Role::user : runtime::Role::assistant), "not in turn");
    DSPACK_CHECK(message.content.has_value(), "a message without a text");
  }
  const std::string text = runtime::saved_messages(*chat);
  const auto again = runtime::parse_saved_messages(text);
  DSPACK_CHECK(again.has_value(), again ? "" : again.error().message);
  DSPACK_CHECK(again->system == chat->system && runtime::saved_messages(*again) == text, "written again it differs");
  return 0;
}
