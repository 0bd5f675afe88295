// The command-line options that are shorthand for a recipe file, and the recipe that they make.
// Threads: main. Errors: invalid, naming the option.
#pragma once

#include <string>

#include "format/cli/option_table.h"
#include "reshard/plan/recipe.h"

namespace dspack::reshard {

struct RecipeFlags {
  std::string file;           // a path, or the name of an installed recipe; empty: `recipe` holds the options
  bool has_grouping = false;  // --by was given
  Recipe recipe;
};

/// Adds --by, --recipe and all options that go with --by.
void add_recipe_options(format::OptionTable& table, RecipeFlags& flags);
/// The recipe from the file, if one is named, else from the options.
[[nodiscard]] Result<Recipe> recipe_of(const RecipeFlags& flags);

}  // namespace dspack::reshard
