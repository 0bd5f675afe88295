// A recipe: what the packed repository should be like. Flags of the command line are shorthand for it.
// Threads: a plain value. Errors: invalid, unsupported.
#pragma once

#include <string_view>

#include "format/base/result.h"
#include "format/json.h"

namespace dspack::reshard {

enum class Grouping {
  expert,  // one file per routed expert
};

struct Recipe {
  Grouping by = Grouping::expert;
};

[[nodiscard]] Result<Grouping> parse_grouping(std::string_view text);
/// A recipe as a file or a manifest holds it. Errors name the key: one that this version does not know is
/// `unsupported`, because passing over it would make another repository than the one that was asked for.
[[nodiscard]] Result<Recipe> parse_recipe(std::string_view json);
/// As it stands in the manifest.
[[nodiscard]] format::Json recipe_json(const Recipe& recipe);

}  // namespace dspack::reshard
