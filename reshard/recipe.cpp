#include "reshard/recipe.h"

#include <fmt/format.h>

namespace dspack::reshard {

Result<Grouping> parse_grouping(std::string_view text) {
  if (text == "expert") return Grouping::expert;
  return Error{ErrorKind::invalid, fmt::format("\"{}\" is no grouping of this version; use \"expert\"", text)};
}

Result<Recipe> parse_recipe(std::string_view json) {
  TRY_ASSIGN(const format::Json root, format::parse_json(json));
  if (!root.is_object()) return Error{ErrorKind::invalid, "the recipe is not a JSON object"};
  for (const auto& [key, unused] : root.items()) {
    if (key != "by") {
      return Error{ErrorKind::unsupported, fmt::format("the recipe's key \"{}\" is none of this version", key)};
    }
  }
  TRY_ASSIGN(const std::string by, format::json_string(root, "by"));
  TRY_ASSIGN(const Grouping grouping, parse_grouping(by));
  return Recipe{.by = grouping};
}

format::Json recipe_json(const Recipe& recipe) {
  switch (recipe.by) {
    case Grouping::expert: return {{"by", "expert"}};
  }
  return {};
}

}  // namespace dspack::reshard
