// The options that are shorthand for a recipe file, and the recipe that they make.
// Threads: main. Errors: invalid, with the option.
#pragma once

#include <string>

#include "format/cli/option_table.h"
#include "reshard/plan/recipe.h"

namespace dspack::reshard {

struct RecipeFlags {
  std::string file;           // or the name of an installed one; empty: `recipe` is what was said
  bool has_grouping = false;  // by --by
  Recipe recipe;
};

/// Adds --by, --recipe and all that goes with --by.
void add_recipe_options(format::OptionTable& table, RecipeFlags& flags);
/// Reads the file, if there is one.
[[nodiscard]] Result<Recipe> recipe_of(const RecipeFlags& flags);

}  // namespace dspack::reshard
