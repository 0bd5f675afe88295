// From user input to token ids: the options of prompts, conversations and token ids, given as text, as a file or on
// standard input. Threads: call from the main thread. Lifetime: what options are read into must live until the command
// line was parsed.
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
  std::string chat_template;     // a known name, or a file with the Jinja source of one; empty: the repository's
  std::optional<bool> thinking;  // for templates with such a switch
  OrderedJson template_args;     // what else the template is told, an object; null: nothing

  /// What the template is told by both.
  [[nodiscard]] OrderedJson arguments() const;
};

/// --chat-template, --thinking and --template-args.
void add_chat_options(format::OptionTable& table, ChatOptions& chat);

/// Token ids, or where they are.
struct TokenArgument {
  std::vector<uint32_t> ids;
  std::string file;  // "-": standard input; empty: `ids` are they
  [[nodiscard]] bool is_given() const { return !ids.empty() || !file.empty(); }
};

/// --tokens 1,2,3 or @FILE or -; the file is read later.
format::OptionTable::Option add_tokens(format::OptionTable& table, TokenArgument& tokens,
                                       const std::string& about = "Token ids, with commas between");

/// The prompt, or for "-" all of standard input. Errors: io; budget (above 64 MiB).
[[nodiscard]] Result<std::string> read_prompt(const std::string& prompt);

/// The same, and text that is piped beside another prompt after that: below an empty line, or directly where `raw` text
/// is continued. White space alone is nothing.
[[nodiscard]] Result<std::string> read_prompt_and_pipe(const std::string& prompt, bool raw);

/// Token ids as text: whole numbers with commas, white space or both between. Errors: invalid, naming the place.
[[nodiscard]] Result<std::vector<uint32_t>> parse_token_ids(std::string_view text);

/// The ids that --tokens has given, or those in its file or on standard input. Errors: those of reading; invalid.
[[nodiscard]] Result<std::vector<uint32_t>> read_tokens(const TokenArgument& tokens);

/// The conversation in a JSON file, or for "-" in standard input. Errors: those of reading; invalid, naming the file.
[[nodiscard]] Result<Conversation> read_conversation(const std::string& file);

/// What the clock says, for templates that print the date.
[[nodiscard]] std::tm local_time();

/// Errors: invalid, arguments (an object, or null) that the chat template does not read, or that it is given anyway.
[[nodiscard]] Result<void> check_template_args(const OrderedJson& arguments, const ChatTemplate& chat);

/// The conversation as the chat template writes it. Errors: invalid (the template fails for it, or does not read its
/// arguments), cancelled; there is no template.
[[nodiscard]] Result<ChatText> render_conversation(const TextModel& text, const Conversation& conversation,
                                                   const ChatOptions& options, bool add_generation_prompt,
                                                   const std::stop_token& stop);

/// What the model gets.
struct EncodedPrompt {
  std::vector<uint32_t> tokens;
  bool begins_reasoning = false;
};

/// `raw`: the prompt as it is, to be continued; else as a question in the chat template, `chat` saying how, after the
/// system message unless that is empty. Errors: those of tokenizer and chat template.
[[nodiscard]] Result<EncodedPrompt> encode_prompt(const TextModel& text, std::string prompt, bool raw,
                                                  const ChatOptions& chat, const std::string& system,
                                                  const std::stop_token& stop);

/// What --system says, or the text of the file that it names after @: valid UTF-8. Errors: those of read_text_file.
[[nodiscard]] Result<std::string> read_system(const std::string& text_or_file);

/// A file as text for a prompt. Errors: those of reading; budget (above kMostFileBytes); invalid (no UTF-8, a zero
/// byte).
inline constexpr uint64_t kMostFileBytes = 4U << 20U;
[[nodiscard]] Result<std::string> read_text_file(const std::string& file);

/// The conversation, ending where the answer begins.
[[nodiscard]] Result<EncodedPrompt> encode_conversation(const TextModel& text, const Conversation& conversation,
                                                        const ChatOptions& chat, const std::stop_token& stop);

}  // namespace dspack::runtime
