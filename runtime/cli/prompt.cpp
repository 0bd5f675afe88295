#include "runtime/cli/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "format/base/foreign_text.h"
#include "format/base/near_word.h"
#include "format/cli/output.h"
#include "format/file_system.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/terminal.h"

namespace dspack::runtime {

void add_chat_options(format::OptionTable& table, ChatOptions& chat) {
  table.add("--chat-template", "NAME|FILE", chat.chat_template,
            "Chat template: a built-in name (a wrong one lists them) or a file with its Jinja source (default: the "
            "repository's own; for DeepSeek-V3.2 and V4, which have none, that of the release)");
  table.add("--thinking", "on|off", chat.thinking, format::one_of<bool>({{"on", true}, {"off", false}}),
            "Whether the answer begins with reasoning (default: the chat template's own)");
  table.add("--template-args", "JSON", chat.template_args, &parse_template_arguments,
            "What else the chat template is told, by name: {\"reasoning_effort\": \"high\"}");
}

OrderedJson ChatOptions::arguments() const {
  OrderedJson all = thinking ? thinking_arguments(*thinking) : OrderedJson::object();
  if (template_args.is_object()) all.update(template_args);
  return all;
}

Result<void> check_template_args(const OrderedJson& arguments, const ChatTemplate& chat) {
  const std::vector<std::string> known = chat.arguments();
  for (const auto& [name, value] : arguments.items()) {
    if (is_given_to_templates(name)) {
      return Error{ErrorKind::invalid, fmt::format("{} is what the conversation gives the chat template, and no "
                                                   "argument; leave it out",
                                                   quote(name))};
    }
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string read = brief(fmt::format("{}", fmt::join(known, ", ")));  // untrusted names
    return Error{ErrorKind::invalid,
                 fmt::format("the chat template never reads {}{} ({})", quote(name), format::did_you_mean(name, known),
                             known.empty() ? "it reads no arguments" : "it reads " + read)};
  }
  return {};
}

format::OptionTable::Option add_tokens(format::OptionTable& table, TokenArgument& tokens, const std::string& about) {
  const auto take = [&tokens](const std::vector<std::string>& words) -> Result<void> {
    const std::string& first = words.front();
    if (words.size() == 1 && (first == "-" || (first.starts_with('@') && first.size() > 1))) {
      tokens.file = first == "-" ? first : first.substr(1);
      return {};
    }
    for (const std::string& word : words) {
      TRY_ASSIGN(const std::vector<uint32_t> ids, parse_token_ids(word));
      if (ids.empty()) return invalid("a token id is empty");
      tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    }
    return {};
  };
  return table.words("--tokens", "1,2,3|@FILE|-", take, about);
}

Result<std::string> read_prompt(const std::string& prompt) {
  if (prompt != "-") return prompt;
  constexpr size_t kMaxBytes = 64U << 20U;  // far above the context of any model
  std::string text;
  std::string piece(65536, '\0');
  for (size_t count = 1; count > 0;) {
    count = std::fread(piece.data(), 1, piece.size(), stdin);
    text.append(piece, 0, count);
    if (text.size() > kMaxBytes) return Error{ErrorKind::budget, "standard input: a prompt can have at most 64 MiB"};
  }
  if (std::ferror(stdin) != 0) return Error{ErrorKind::io, "standard input cannot be read"};
  return text;
}

Result<std::string> read_prompt_and_pipe(const std::string& prompt, bool raw) {
  constexpr std::chrono::seconds kPatience{2};
  if (prompt == "-" || !stdin_is_piped()) return read_prompt(prompt);
  if (!stdin_answers_within(kPatience)) {
    note("waiting for the end of the text that is piped beside the prompt (< /dev/null: there is none)");
  }
  TRY_ASSIGN(const std::string piped, read_prompt("-"));
  if (piped.find_first_not_of(" \t\r\n") == std::string::npos) return prompt;
  return prompt + (raw || prompt.empty() ? "" : "\n\n") + piped;
}

Result<std::vector<uint32_t>> parse_token_ids(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<uint32_t> ids;
  const auto skip_space = [&] { text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size())); };
  skip_space();
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find_first_of(" \t\r\n,"));
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (word.empty() || error != std::errc() || end != word.data() + word.size()) {
      constexpr size_t kMaxShown = 40;
      return Error{ErrorKind::invalid, fmt::format("number {}: \"{}\" is not a token id", ids.size() + 1,
                                                   printable(word.substr(0, kMaxShown)))};
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
    skip_space();
    if (!text.starts_with(',')) continue;
    text.remove_prefix(1);
    skip_space();
    if (text.empty()) return Error{ErrorKind::invalid, "no token id follows the last comma"};
  }
  return ids;
}

Result<std::vector<uint32_t>> read_tokens(const TokenArgument& tokens) {
  if (tokens.file.empty()) return tokens.ids;
  const std::string place = tokens.file == "-" ? "standard input" : tokens.file;
  const auto text = tokens.file == "-" ? read_prompt(tokens.file)
                                       : format::read_text(format::posix_file_system(), tokens.file, kMaxTextBytes);
  if (!text) return text.error();
  auto ids = parse_token_ids(*text);
  if (!ids) return ids.error().in(place);
  if (ids->empty()) return Error{ErrorKind::invalid, place + ": it holds no token ids"};
  return ids;
}

Result<Conversation> read_conversation(const std::string& file) {
  const auto json =
      file == "-" ? read_prompt(file) : format::read_text(format::posix_file_system(), file, kMaxTextBytes);
  if (!json) return json.error();
  auto conversation = parse_conversation(*json);
  if (!conversation) return conversation.error().in(file == "-" ? "standard input" : file);
  return conversation;
}

std::tm local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm now{};
  localtime_r(&seconds, &now);
  return now;
}

Result<ChatText> render_conversation(const TextModel& text, const Conversation& conversation,
                                     const ChatOptions& options, bool add_generation_prompt,
                                     const std::stop_token& stop) {
  OrderedJson arguments = options.arguments();
  if (const auto& chat = text.chat_template(!conversation.tools.is_null())) {
    if (!conversation.tools.empty() && !chat->prints_tools()) note("the chat template does not print tools");
    TRY(check_template_args(conversation.arguments, *chat));
  }
  for (const auto& [name, value] : conversation.arguments.items()) {
    if (!options.template_args.contains(name)) arguments[name] = value;  // the command line takes precedence
  }
  return text.render_chat(conversation.messages, {.add_generation_prompt = add_generation_prompt,
                                                  .tools = conversation.tools,
                                                  .arguments = std::move(arguments),
                                                  .now = local_time(),
                                                  .stop = stop});
}

Result<EncodedPrompt> encode_conversation(const TextModel& text, const Conversation& conversation,
                                          const ChatOptions& chat, const std::stop_token& stop) {
  TRY_ASSIGN(const ChatText rendered, render_conversation(text, conversation, chat, true, stop));
  EncodedPrompt encoded{.tokens = {}, .begins_reasoning = begins_reasoning(rendered.text)};
  TRY_ASSIGN(encoded.tokens, text.tokenizer().encode(rendered.text, rendered.special));
  return encoded;
}

Result<std::string> read_text_file(const std::string& file) {
  auto text = format::read_text(format::posix_file_system(), file, kMaxFileBytes);
  if (!text) return text.error();
  std::string_view rest = *text;
  while (!rest.empty()) {
    const Utf8Unit unit = first_utf8_unit(rest);
    if (unit.kind != Utf8Unit::Kind::character || rest.front() == '\0') {
      return Error{ErrorKind::invalid,
                   fmt::format("{}: byte {} is no text in UTF-8", brief(file), text->size() - rest.size())};
    }
    rest.remove_prefix(unit.bytes);
  }
  return text;
}

Result<std::string> read_system(const std::string& text_or_file) {
  if (!text_or_file.starts_with('@')) return text_or_file;
  TRY_ASSIGN(std::string text, read_text_file(text_or_file.substr(1)));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

Result<EncodedPrompt> encode_prompt(const TextModel& text, std::string prompt, bool raw, const ChatOptions& chat,
                                    const std::string& system, const std::stop_token& stop) {
  if (raw) {
    EncodedPrompt encoded{.tokens = {}, .begins_reasoning = begins_reasoning(prompt)};
    TRY_ASSIGN(encoded.tokens, text.encode_raw(prompt));
    return encoded;
  }
  if (prompt.ends_with('\n')) prompt.pop_back();  // strips the line end that echo and editors append to a question
  Conversation conversation;
  if (!system.empty()) conversation.messages.push_back({.role = Role::system, .content = system});
  conversation.messages.push_back({.role = Role::user, .content = std::move(prompt)});
  return encode_conversation(text, conversation, chat, stop);
}

}  // namespace dspack::runtime
