#include "reshard/recipe.h"

#include <fmt/format.h>

namespace dspack::reshard {

Result<Grouping> parse_grouping(std::string_view text) {
  if (text == "expert") return Grouping::expert;
  return Error{ErrorKind::invalid, fmt::format("\"{}\" is no grouping of this version; use \"expert\"", text)};
}

format::Json recipe_json(const Recipe& recipe) {
  switch (recipe.by) {
    case Grouping::expert: return {{"by", "expert"}};
  }
  return {};
}

}  // namespace dspack::reshard
