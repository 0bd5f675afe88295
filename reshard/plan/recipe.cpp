#include "reshard/plan/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "format/base/near_word.h"
#include "format/base/size.h"
#include "format/json.h"

namespace dspack::reshard {
namespace {

constexpr char kBy[] = "by";
constexpr char kLayerMap[] = "layer_map";
constexpr char kRatioRepeat[] = "ratio_repeat";
constexpr char kInclude[] = "include";
constexpr char kExclude[] = "exclude";
constexpr char kDropMtp[] = "drop_mtp";
constexpr char kTransforms[] = "transform";
constexpr char kDedupe[] = "dedupe";
constexpr char kCompress[] = "compress";
constexpr std::array<std::string_view, 9> kKeys{kBy,         kLayerMap, kRatioRepeat, kInclude, kExclude,
                                                kTransforms, kDedupe,   kCompress,    kDropMtp};

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

Result<std::vector<Selector>> parse_selectors(const format::Json& recipe, const char* key) {
  if (!recipe.contains(key)) return std::vector<Selector>();
  auto selectors = selectors_of(recipe[key]);
  if (!selectors) return selectors.error().in(fmt::format("\"{}\"", key));
  return selectors;
}

Result<std::vector<Transform>> parse_transforms(const format::Json& recipe) {
  std::vector<Transform> transforms;
  if (!recipe.contains(kTransforms)) return transforms;
  const format::Json& value = recipe[kTransforms];
  const format::Json list = value.is_array() ? value : format::Json::array({value});
  for (const format::Json& entry : list) {
    auto transform = transform_of(entry);
    if (!transform) return transform.error().in(fmt::format("\"{}\"", kTransforms));
    transforms.push_back(std::move(*transform));
  }
  return transforms;
}

Result<bool> parse_flag(const format::Json& recipe, const char* key) {
  if (!recipe.contains(key)) return false;
  if (!recipe[key].is_boolean()) return invalid(fmt::format("\"{}\" is neither true nor false", key));
  return recipe[key].get<bool>();
}

}  // namespace

Result<int> parse_compression(std::string_view text) {
  constexpr std::string_view kName = "zstd";
  if (text == kName) return kDefaultZstdLevel;
  if (text.starts_with("zstd:")) {
    const std::optional<uint64_t> level = parse_decimal(text.substr(kName.size() + 1));
    if (level && *level >= 1 && *level <= kMaxZstdLevel) return static_cast<int>(*level);
  }
  return invalid(fmt::format("\"{}\" is no compression; there is \"zstd\" and \"zstd:LEVEL\" with a level from 1 to {}",
                             text, kMaxZstdLevel));
}

Result<Recipe> parse_recipe(std::string_view json) {
  TRY_ASSIGN(const format::Json object, format::parse_json(json, format::kRecipeDocument));
  if (!object.is_object()) return invalid("a recipe is a JSON object, as {\"by\":\"expert\"}");
  for (const auto& [key, unused] : object.items()) {
    if (std::ranges::find(kKeys, key) != kKeys.end()) continue;
    const std::vector<std::string> names(kKeys.begin(), kKeys.end());
    return invalid(fmt::format("unknown key \"{}\"; a recipe has \"{}\"{}", key, fmt::join(kKeys, "\", \""),
                               format::did_you_mean(key, names)));
  }
  TRY_ASSIGN(const std::string by, format::json_string(object, kBy));
  Recipe recipe;
  TRY_ASSIGN(recipe.by, parse_grouping(by));
  TRY_ASSIGN(recipe.layers, parse_selection(object));
  TRY_ASSIGN(recipe.selection.include, parse_selectors(object, kInclude));
  TRY_ASSIGN(recipe.selection.exclude, parse_selectors(object, kExclude));
  TRY_ASSIGN(recipe.transforms, parse_transforms(object));
  TRY_ASSIGN(recipe.dedupe, parse_flag(object, kDedupe));
  if (object.contains(kCompress)) {
    TRY_ASSIGN(const std::string text, format::json_string(object, kCompress));
    TRY_ASSIGN(recipe.zstd_level, parse_compression(text));
  }
  TRY_ASSIGN(recipe.drop_mtp, parse_flag(object, kDropMtp));
  return recipe;
}

format::Json recipe_json(const Recipe& recipe) {
  format::Json json = {{kBy, to_string(recipe.by)}};
  if (recipe.layers) {
    if (const auto* map = std::get_if<format::LayerMap>(&*recipe.layers)) {
      json[kLayerMap] = format::to_string(*map);
    } else {
      json[kRatioRepeat] = format::to_string(std::get<format::RatioRepeat>(*recipe.layers));
    }
  }
  if (!recipe.selection.include.empty()) json[kInclude] = selectors_json(recipe.selection.include);
  if (!recipe.selection.exclude.empty()) json[kExclude] = selectors_json(recipe.selection.exclude);
  for (const Transform& transform : recipe.transforms)
    json[kTransforms].push_back(transform_json(transform));
  if (recipe.dedupe) json[kDedupe] = true;
  if (recipe.zstd_level) json[kCompress] = fmt::format("zstd:{}", *recipe.zstd_level);
  if (recipe.drop_mtp) json[kDropMtp] = true;
  return json;
}

}  // namespace dspack::reshard
