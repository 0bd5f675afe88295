// Converts user input to token ids: options for prompts, conversations and token ids, given as text, as a file or on
// standard input.
// Threads: call from the main thread. Lifetime: the targets of options must live until the command line has been
// parsed.
#pragma once

#include <ctime>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/cli/option_table.h"
#include "runtime/generate/text_model.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// How a conversation becomes a prompt.
struct ChatOptions {
  std::string chat_template;     // a known name, or a file with Jinja source; empty: the repository's
  std::optional<bool> thinking;  // for templates with such a switch
  OrderedJson template_args;     // other arguments of the template, an object; null: none

  /// All arguments of the template.
  [[nodiscard]] OrderedJson arguments() const;
};

/// --chat-template, --thinking and --template-args.
void add_chat_options(format::OptionTable& table, ChatOptions& chat);

/// Token ids, or the place to read them from.
struct TokenArgument {
  std::vector<uint32_t> ids;
  std::string file;  // "-": standard input; empty: use `ids`
  [[nodiscard]] bool is_given() const { return !ids.empty() || !file.empty(); }
};

/// --tokens 1,2,3 or @FILE or -; the file is read later.
format::OptionTable::Option add_tokens(format::OptionTable& table, TokenArgument& tokens,
                                       const std::string& about = "Token ids, with commas between");

/// The prompt, or for "-" all of standard input. Errors: io; budget (above 64 MiB).
[[nodiscard]] Result<std::string> read_prompt(const std::string& prompt);

/// The same, followed by text that is piped in besides another prompt: after an empty line, or directly if the prompt
/// is `raw`. White space alone is ignored.
[[nodiscard]] Result<std::string> read_prompt_and_pipe(const std::string& prompt, bool raw);

/// Parses token ids: whole numbers separated by commas, white space or both. Errors: invalid, naming the place.
[[nodiscard]] Result<std::vector<uint32_t>> parse_token_ids(std::string_view text);

/// The ids given by --tokens, or read from its file or standard input. Errors: those of reading; invalid.
[[nodiscard]] Result<std::vector<uint32_t>> read_tokens(const TokenArgument& tokens);

/// The conversation in a JSON file, or in standard input for "-". Errors: those of reading; invalid, naming the file.
[[nodiscard]] Result<Conversation> read_conversation(const std::string& file);

/// The current time, for templates that print the date.
[[nodiscard]] std::tm local_time();

/// Checks arguments (an object, or null). Errors: invalid, if the chat template does not read them, or the conversation
/// sets them.
[[nodiscard]] Result<void> check_template_args(const OrderedJson& arguments, const ChatTemplate& chat);

/// Renders the conversation with the chat template. Errors: invalid (the template fails for it, or does not read its
/// arguments), cancelled; there is no template.
[[nodiscard]] Result<ChatText> render_conversation(const TextModel& text, const Conversation& conversation,
                                                   const ChatOptions& options, bool add_generation_prompt,
                                                   const std::stop_token& stop);

/// The model's input.
struct EncodedPrompt {
  std::vector<uint32_t> tokens;
  bool begins_reasoning = false;
};

/// `raw`: the prompt unchanged, to be continued; else as a question in the chat template, with the options `chat`,
/// after the system message unless that is empty. Errors: those of tokenizer and chat template.
[[nodiscard]] Result<EncodedPrompt> encode_prompt(const TextModel& text, std::string prompt, bool raw,
                                                  const ChatOptions& chat, const std::string& system,
                                                  const std::stop_token& stop);

/// The value of --system, or the text of the file after @: valid UTF-8. Errors: those of read_text_file.
[[nodiscard]] Result<std::string> read_system(const std::string& text_or_file);

/// A file as text for a prompt. Errors: those of reading; budget (above kMaxFileBytes); invalid (not UTF-8, or a zero
/// byte).
inline constexpr uint64_t kMaxFileBytes = 4U << 20U;
[[nodiscard]] Result<std::string> read_text_file(const std::string& file);

/// The conversation, ending at the start of the answer.
[[nodiscard]] Result<EncodedPrompt> encode_conversation(const TextModel& text, const Conversation& conversation,
                                                        const ChatOptions& chat, const std::stop_token& stop);

}  // namespace dspack::runtime
