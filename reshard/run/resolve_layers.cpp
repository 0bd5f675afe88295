#include "reshard/run/resolve_layers.h"

#include <fmt/format.h>

#include "format/document_bounds.h"
#include "reshard/run/companions.h"

namespace dspack::reshard {
namespace {

Result<uint32_t> layer_count(std::string_view config) {
  TRY_ASSIGN(const format::Json json, format::parse_json(config, format::kConfigDocument));
  if (!json.is_object()) return Error{ErrorKind::invalid, "is not a JSON object"};
  // Models with more than one part keep the language model's fields in an object of their own.
  const auto text = json.find("text_config");
  const bool nested = text != json.end() && text->is_object();
  TRY_ASSIGN(const uint64_t layers, format::json_uint(nested ? *text : json, "num_hidden_layers"));
  if (layers >= 1 && layers <= kMaxId) return static_cast<uint32_t>(layers);
  return Error{ErrorKind::invalid, fmt::format("\"num_hidden_layers\" is {}: out of range", layers)};
}

}  // namespace

Result<uint32_t> decoder_layers(format::Repository& source, const std::stop_token& stop) {
  const auto text = source.read_text(kConfigPath, format::kConfigDocument.bytes, stop);
  if (!text) return text.error().in("the recipe needs to know the model's layers, from config.json");
  const auto count = layer_count(*text);
  return count ? count : count.error().in(source.locate(kConfigPath));
}

Result<Recipe> resolve_layers(const Recipe& recipe, format::Repository& source, const std::stop_token& stop) {
  if (!recipe.layers) return recipe;
  TRY_ASSIGN(const uint32_t count, decoder_layers(source, stop));
  auto map = format::select_layers(*recipe.layers, count);
  if (!map) return map.error().in("the recipe's layers");
  Recipe resolved = recipe;
  resolved.layers = std::move(*map);
  return resolved;
}

}  // namespace dspack::reshard
