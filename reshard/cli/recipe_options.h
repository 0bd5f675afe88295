// The flags that say what a recipe file says, and the recipe that comes of them.
// Threads: main. Errors: invalid, with the flag.
#pragma once

#include <CLI/CLI.hpp>

#include "reshard/cli/commands.h"
#include "reshard/plan/recipe.h"

namespace dspack::reshard {

/// Adds --by, --recipe and all that goes with --by.
void add_recipe_options(CLI::App& app, RepackFlags& flags);
/// Whether any of them was given.
[[nodiscard]] bool names_recipe(const RepackFlags& flags);
/// Reads the file, or the flags.
[[nodiscard]] Result<Recipe> recipe_of(const RepackFlags& flags);

}  // namespace dspack::reshard
