#include "runtime/text/tokenizer_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/json_fields.h"

namespace dspack::runtime {
namespace {

using nlohmann::json;

/// A string, or an object that holds it as "content".
Result<std::optional<std::string>> token_field(const json& root, const char* key) {
  const json* value = FieldsOf(root).find(key);
  if (value == nullptr || !value->is_object()) return FieldsOf(root).text(key);
  Result<std::string> content = FieldsOf(*value).required_text("content");
  if (!content) return content.error().in(fmt::format("\"{}\"", key));
  return std::optional<std::string>(*std::move(content));
}

/// A string, or a list of {"name", "template"}.
Result<void> read_chat_templates(const json& root, TokenizerConfig& config) {
  const json* value = FieldsOf(root).find("chat_template");
  if (value == nullptr || !value->is_array()) {
    TRY_ASSIGN(config.chat_template, FieldsOf(root).text("chat_template"));
    return {};
  }
  for (const json& entry : *value) {
    TRY_ASSIGN(const std::string name, FieldsOf(entry).required_text("name"));
    TRY_ASSIGN(std::string text, FieldsOf(entry).required_text("template"));
    if (name != "default" && name != "tool_use") continue;
    (name == "default" ? config.chat_template : config.tool_chat_template) = std::move(text);
  }
  return {};
}

Result<TokenizerConfig> read_config(const json& root) {
  TokenizerConfig config;
  TRY_ASSIGN(config.add_bos_token, FieldsOf(root).flag("add_bos_token", false));
  TRY_ASSIGN(config.add_eos_token, FieldsOf(root).flag("add_eos_token", false));
  TRY_ASSIGN(config.bos_token, token_field(root, "bos_token"));
  TRY_ASSIGN(config.eos_token, token_field(root, "eos_token"));
  TRY_ASSIGN(config.pad_token, token_field(root, "pad_token"));
  TRY(read_chat_templates(root, config));
  return config;
}

}  // namespace

Result<TokenizerConfig> TokenizerConfig::from_json(std::string_view tokenizer_config_json) {
  TRY_ASSIGN(const json root, parse_json(tokenizer_config_json, "tokenizer_config.json", format::kSettingsDocument));
  Result<TokenizerConfig> config = read_config(root);
  if (!config) return config.error().in("tokenizer_config.json");
  return config;
}

}  // namespace dspack::runtime
