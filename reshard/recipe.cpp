#include "reshard/recipe.h"

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

constexpr char kBy[] = "by";
constexpr char kLayerMap[] = "layer_map";
constexpr char kRatioRepeat[] = "ratio_repeat";

Error invalid(std::string message) {
  return {ErrorKind::invalid, std::move(message)};
}

Result<format::LayerMap> parse_layer_map(const format::Json& value) {
  return value.is_string() ? format::parse_layers(value.get<std::string>()) : format::layer_map_of(value);
}

Result<format::RatioRepeat> parse_ratio(const format::Json& value) {
  if (!value.is_string()) return invalid("is no text, as in \"(0,.5),(.3,.8),(.5,1)\"");
  return format::parse_ratio_repeat(value.get<std::string>());
}

Result<std::optional<format::LayerSelection>> parse_selection(const format::Json& recipe) {
  const bool has_map = recipe.contains(kLayerMap);
  const bool has_ratio = recipe.contains(kRatioRepeat);
  if (has_map && has_ratio) return invalid(fmt::format(R"("{}" and "{}" exclude each other)", kLayerMap, kRatioRepeat));
  std::optional<format::LayerSelection> selection;
  if (has_map) {
    auto map = parse_layer_map(recipe[kLayerMap]);
    if (!map) return map.error().in(fmt::format("\"{}\"", kLayerMap));
    selection = std::move(*map);
  } else if (has_ratio) {
    auto ratio = parse_ratio(recipe[kRatioRepeat]);
    if (!ratio) return ratio.error().in(fmt::format("\"{}\"", kRatioRepeat));
    selection = std::move(*ratio);
  }
  return selection;
}

}  // namespace

Result<Recipe> parse_recipe(std::string_view json) {
  TRY_ASSIGN(const format::Json object, format::parse_json(json));
  if (!object.is_object()) return invalid("a recipe is a JSON object, as {\"by\":\"expert\"}");
  for (const auto& [key, unused] : object.items()) {
    if (key == kBy || key == kLayerMap || key == kRatioRepeat) continue;
    return invalid(fmt::format(R"(unknown key "{}"; a recipe has "{}" and perhaps "{}" or "{}")", key, kBy, kLayerMap,
                               kRatioRepeat));
  }
  TRY_ASSIGN(const std::string by, format::json_string(object, kBy));
  TRY_ASSIGN(const Grouping grouping, parse_grouping(by));
  TRY_ASSIGN(auto layers, parse_selection(object));
  return Recipe{.by = grouping, .layers = std::move(layers)};
}

format::Json recipe_json(const Recipe& recipe) {
  format::Json json = {{kBy, to_string(recipe.by)}};
  if (!recipe.layers) return json;
  if (const auto* map = std::get_if<format::LayerMap>(&*recipe.layers)) {
    json[kLayerMap] = format::to_string(*map);
  } else {
    json[kRatioRepeat] = format::to_string(std::get<format::RatioRepeat>(*recipe.layers));
  }
  return json;
}

}  // namespace dspack::reshard
