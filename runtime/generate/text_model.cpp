#include "runtime/generate/text_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/json.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/text/json.h"
#include "runtime/text/json_fields.h"

namespace dspack::runtime {

namespace {

constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr char kTiktokenFile[] = "tiktoken.model";
constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kTemplateFile[] = "chat_template.jinja";
constexpr char kToolTemplateFile[] = "additional_chat_templates/tool_use.jinja";
constexpr char kModelFile[] = "config.json";

/// A file that may be absent.
Result<std::optional<std::string>> read_if_there(format::Repository& repository, const char* file, uint64_t limit_bytes,
                                                 const std::stop_token& stop) {
  auto text = repository.read_text(file, limit_bytes, stop);
  if (text) return std::optional<std::string>(*std::move(text));
  if (text.error().kind != ErrorKind::not_found) return text.error();
  return std::optional<std::string>();
}

// tokenizer.json takes precedence, as in transformers.
Result<Tokenizer> load_tokenizer(format::Repository& repository, const std::optional<std::string>& config,
                                 const std::stop_token& stop) {
  TRY_ASSIGN(const auto text, read_if_there(repository, kTokenizerFile, kMaxTextBytes, stop));
  if (text) return Tokenizer::from_json(*text);
  TRY_ASSIGN(const auto model, read_if_there(repository, kTiktokenFile, kMaxTextBytes, stop));
  if (model && config) return Tokenizer::from_tiktoken(*model, *config);
  if (model) {
    return Error{ErrorKind::not_found,
                 fmt::format("{} has {} but no {}, which names its special tokens; fetch it from where the weights are "
                             "from",
                             repository.description(), kTiktokenFile, kConfigFile)};
  }
  return Error{ErrorKind::not_found,
               fmt::format("{} has no {} (nor {}); text needs it, fetch it from where the weights are from",
                           repository.description(), kTokenizerFile, kTiktokenFile)};
}

// Newer repositories keep templates in separate files, which take precedence, as in transformers.
Result<void> read_template_files(format::Repository& repository, TokenizerConfig& config, const std::stop_token& stop) {
  TRY_ASSIGN(auto text, read_if_there(repository, kTemplateFile, format::kSettingsDocument.bytes, stop));
  if (!text) return {};
  config.chat_template = std::move(text);
  TRY_ASSIGN(config.tool_chat_template,
             read_if_there(repository, kToolTemplateFile, format::kSettingsDocument.bytes, stop));
  return {};
}

/// The built-in template for a repository without one, by its kind of model.
Result<ChatTemplate> template_of_model(const std::optional<std::string>& model_config) {
  std::optional<std::string> type;
  bool has_dspark = false;
  if (model_config) {
    TRY_ASSIGN(const nlohmann::json config, parse_json(*model_config, kModelFile, format::kConfigDocument));
    TRY_ASSIGN(type, FieldsOf(config).text("model_type"));
    for (const auto& [key, value] : config.items())
      has_dspark = has_dspark || key.starts_with("dspark_");
  }
  if (const auto name = builtin_template_of(type.value_or(""), has_dspark)) return ChatTemplate::named(*name);
  return Error{ErrorKind::not_found,
               "this repository has no chat template; --chat-template NAME uses a known one (a wrong name lists them)"};
}

}  // namespace

bool begins_reasoning(std::string_view prompt) {
  return prompt.ends_with("<think>") || prompt.ends_with("<think>\n");
}

bool continues_reasoning(std::string_view prompt, size_t answer) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClosed = "</think>";
  const std::string_view said = prompt.substr(std::min(answer, prompt.size()));
  const size_t open = said.rfind(kOpen);
  const size_t closed = said.rfind(kClosed);
  if (open == closed) return begins_reasoning(prompt.substr(0, answer));  // neither occurs
  return closed == std::string_view::npos || (open != std::string_view::npos && open > closed);
}

Result<uint64_t> tokenizer_bytes(format::Repository& repository, const std::stop_token& stop) {
  for (const char* file : {kTokenizerFile, kTiktokenFile}) {
    if (repository.is_local()) {
      const auto source = repository.open(file, stop);
      if (source) return (*source)->size_bytes();
      if (source.error().kind != ErrorKind::not_found) return source.error();
      continue;
    }
    // Reads the whole file: the place's cache keeps small files, and it is needed soon anyway.
    const auto text = repository.read_text(file, kMaxTextBytes, stop);
    if (text) return text->size();
    if (text.error().kind != ErrorKind::not_found) return text.error();
  }
  return 0;
}

Result<TextModel> TextModel::load(format::Repository& repository, const std::stop_token& stop) {
  TRY_ASSIGN(const auto text, read_if_there(repository, kConfigFile, format::kSettingsDocument.bytes, stop));
  TRY_ASSIGN(Tokenizer tokenizer, load_tokenizer(repository, text, stop));
  TokenizerConfig config;
  if (text) {
    TRY_ASSIGN(config, TokenizerConfig::from_json(*text));
  }
  TRY(read_template_files(repository, config, stop));
  std::optional<std::string> model_config;
  if (!config.chat_template) {
    TRY_ASSIGN(model_config, read_if_there(repository, kModelFile, format::kConfigDocument.bytes, stop));
  }
  auto chat = config.chat_template ? ChatTemplate::compile(*config.chat_template) : template_of_model(model_config);
  std::optional<Result<ChatTemplate>> tool_chat;
  if (config.tool_chat_template) tool_chat = ChatTemplate::compile(*config.tool_chat_template);
  return TextModel(std::move(tokenizer), std::move(config), std::move(chat), std::move(tool_chat));
}

std::optional<uint32_t> TextModel::end_of_reasoning(bool with_tools) const {
  const Result<ChatTemplate>& chat = chat_template(with_tools);
  return chat && chat->traits().is_v4 ? tokenizer_.id_of("</think>") : std::nullopt;
}

Result<ChatText> TextModel::render_chat(std::span<const ChatMessage> messages, RenderOptions options) const {
  const Result<ChatTemplate>& chat = chat_template(!options.tools.is_null());
  if (!chat) return chat.error().in("this needs a chat template (--raw continues a text without one)");
  options.bos_token = config_.bos_token.value_or("");
  options.eos_token = config_.eos_token.value_or("");
  const bool is_guarded = chat->traits().is_v4;
  if (is_guarded) options.guard = [this](std::string_view text) { return tokenizer_.guarded(text); };
  TRY_ASSIGN(std::string text, chat->render(messages, options));
  return ChatText{.text = std::move(text), .special = is_guarded ? SpecialTokens::guarded : SpecialTokens::parse};
}

Result<std::vector<uint32_t>> TextModel::encode_raw(std::string_view text, const EncodingLimits& limits) const {
  TRY_ASSIGN(std::vector<uint32_t> tokens, tokenizer_.encode(text, SpecialTokens::parse, limits));
  if (!config_.add_bos_token || !config_.bos_token) return tokens;
  const auto bos = tokenizer_.id_of(*config_.bos_token);
  if (!bos) {
    return Error{ErrorKind::invalid, fmt::format("{}: \"bos_token\" is not a token of the tokenizer", kConfigFile)};
  }
  if (tokens.empty() || tokens.front() != *bos) tokens.insert(tokens.begin(), *bos);
  return tokens;
}

}  // namespace dspack::runtime
