#include "runtime/cli/verbs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "format/base/foreign_text.h"
#include "format/cli/output.h"
#include "format/file_system.h"
#include "format/json.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/places.h"

namespace dspack::runtime {

namespace {

format::Json pieces(const Tokenizer& tokenizer, std::span<const uint32_t> tokens) {
  format::Json list = format::Json::array();
  for (const uint32_t token : tokens) {
    list.push_back({{"id", token}, {"text", tokenizer.decode(std::span(&token, 1), SpecialOutput::keep)}});
  }
  return list;
}

std::string line_of(std::span<const uint32_t> tokens) {
  return fmt::format("{}\n", fmt::join(tokens, " "));
}

void print_tokens(const Tokenizer& tokenizer, std::span<const uint32_t> tokens, bool as_json) {
  if (as_json)
    format::print_json(format::canonical_json(pieces(tokenizer, tokens)) + "\n");
  else
    format::print_out(line_of(tokens));
}

Result<std::string> read_batch(const std::string& file) {
  constexpr uint64_t kMaxBytes = 1ULL << 30;  // texts for comparing tokenizers; far above any prompt
  return format::read_text(format::posix_file_system(), file, kMaxBytes);
}

/// The parts of `text` between separators; no empty part after the last separator.
std::vector<std::string_view> parts(std::string_view text, char separator) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    found.push_back(text.substr(0, text.find(separator)));
    text.remove_prefix(std::min(text.size(), found.back().size() + 1));
  }
  return found;
}

Result<int> tokenize_file(const Tokenizer& tokenizer, const std::string& file, bool as_json) {
  TRY_ASSIGN(const std::string texts, read_batch(file));
  for (const std::string_view text : parts(texts, '\0')) {
    TRY_ASSIGN(const std::vector<uint32_t> tokens, tokenizer.encode(text, SpecialTokens::parse));
    print_tokens(tokenizer, tokens, as_json);
  }
  return 0;
}

Result<std::vector<uint32_t>> parse_ids(std::string_view line, size_t number) {
  std::vector<uint32_t> ids;
  for (const std::string_view word : parts(line, ' ')) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      return Error{ErrorKind::invalid,
                   fmt::format("line {}: {} is not a token id; ids have one space between", number, quote(word))};
    }
    ids.push_back(id);
  }
  return ids;
}

Result<int> decode_file(const Tokenizer& tokenizer, const std::string& file) {
  TRY_ASSIGN(const std::string lines, read_batch(file));
  size_t number = 0;
  for (const std::string_view line : parts(lines, '\n')) {
    const Result<std::vector<uint32_t>> ids = parse_ids(line, ++number);
    if (!ids) return ids.error().in(file);
    format::print_json(format::canonical_json(tokenizer.decode(*ids, SpecialOutput::keep)) + "\n");
  }
  return 0;
}

/// The single text to tokenize.
Result<ChatText> text_of(const TextModel& model, const TokenizeOptions& options, const std::stop_token& stop) {
  if (options.prompt) {
    TRY_ASSIGN(std::string prompt, read_prompt(*options.prompt));
    return ChatText{.text = std::move(prompt)};
  }
  TRY_ASSIGN(const Conversation conversation, read_conversation(*options.conversation));
  return render_conversation(model, conversation, options.chat, !options.ends_after_message, stop);
}

Result<int> run_tokenize(const TokenizeOptions& options, format::Process& process) {
  const std::stop_token stop = process.stop();
  TRY_ASSIGN(const auto access, open_place(options.folder, options.remote, stop));
  TRY_ASSIGN(const TextModel model, load_text(access->files(), options.chat, stop));
  const Tokenizer& tokenizer = model.tokenizer();
  if (options.texts_file) return tokenize_file(tokenizer, *options.texts_file, options.as_json);
  if (options.ids_file) return decode_file(tokenizer, *options.ids_file);
  TRY_ASSIGN(const ChatText text, text_of(model, options, stop));
  if (options.as_text) {
    format::print_data(text.plain() + "\n");
    return 0;
  }
  TRY_ASSIGN(const std::vector<uint32_t> tokens, tokenizer.encode(text.text, text.special));
  print_tokens(tokenizer, tokens, options.as_json);
  return 0;
}

void add_tokenize_options(format::OptionTable& table, TokenizeOptions& options) {
  table.explain(
      "Prints the token ids of a text or a conversation. Special tokens in it are recognised; none is added but by the "
      "chat template.");
  table.footer(
      "Examples:\n  dsrun tokenize ./ds-packed -p \"Hello world\"\n"
      "  dsrun tokenize ./ds-packed --chat talk.json --text\n\n"
      "talk.json: {\"messages\": [...], \"tools\": [...]} as in OpenAI's chat API, or the list of messages alone.");
  add_folder(table, options.folder);
  table.add("-p,--prompt", "TEXT", options.prompt, "The text; - reads it from standard input");
  auto conversation =
      table.add("--chat", "FILE.json", options.conversation, "A conversation; - reads it from standard input");
  add_chat_options(table, options.chat);
  auto json = table.flag("--json", options.as_json, R"(A list of {"id", "text"} instead of ids)");
  table.flag("--text", options.as_text, "The conversation as the template writes it instead of ids")
      .excludes(json)
      .needs(conversation);
  table.dev("texts", "FILE", options.texts_file,
            "in place of -p: a file of texts with NUL bytes between; one line of "
            "ids for each");
  table.dev("ids", "FILE", options.ids_file,
            "in place of -p: a file with ids on each line; one JSON string of text "
            "for each");
  table.dev_flag("no-question", options.ends_after_message,
                 "end the conversation after its last message, do not ask for an answer");
  add_cache_options(table, options.remote);
}

}  // namespace

Result<void> TokenizeOptions::complete() const {
  const int given = prompt.has_value() + conversation.has_value() + texts_file.has_value() + ids_file.has_value();
  if (given != 1) return invalid("give a text with -p, or a conversation with --chat: one of them");
  if (ends_after_message && !conversation) return invalid("--dev no-question needs --chat");
  return {};
}

format::Verb tokenize_verb() {
  return format::make_verb("tokenize", "Print the token ids of a text or conversation", add_tokenize_options,
                           run_tokenize);
}

}  // namespace dspack::runtime
