// From what the user wrote to token ids: prompts and conversations, given as text, as a file or on standard input.
// Threads: call from the main thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/options.h"
#include "runtime/generate/text_model.h"
#include "runtime/text/chat_json.h"

namespace dspack::runtime {

/// The prompt, or for "-" all of standard input. Errors: io; budget (above 64 MiB).
[[nodiscard]] Result<std::string> read_prompt(const std::string& prompt);

/// Token ids as text: whole numbers with commas, white space or both between. Errors: invalid, naming the place.
[[nodiscard]] Result<std::vector<uint32_t>> parse_token_ids(std::string_view text);

/// The ids that --tokens has given, or those in its file or on standard input. Errors: those of reading; invalid.
[[nodiscard]] Result<std::vector<uint32_t>> read_tokens(const TokenArgument& tokens);

/// The conversation in a JSON file, or for "-" in standard input. Errors: those of reading; invalid, naming the file.
[[nodiscard]] Result<Conversation> read_conversation(const std::string& file);

/// The conversation as the chat template writes it. Errors: invalid (the template fails for it); no known template.
[[nodiscard]] Result<std::string> render_conversation(const TextModel& text, const Conversation& conversation,
                                                      const ChatOptions& options, bool add_generation_prompt);

/// `raw`: the prompt as it is, to be continued; else as a question in the chat template, `chat` saying how. Errors:
/// those of tokenizer and chat template.
[[nodiscard]] Result<std::vector<uint32_t>> encode_prompt(const TextModel& text, std::string prompt, bool raw,
                                                          const ChatOptions& chat);

/// The conversation's token ids, ending where the answer begins.
[[nodiscard]] Result<std::vector<uint32_t>> encode_conversation(const TextModel& text, const Conversation& conversation,
                                                                const ChatOptions& chat);

}  // namespace dspack::runtime
