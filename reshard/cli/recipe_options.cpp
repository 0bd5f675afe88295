#include "reshard/cli/recipe_options.h"

#include <fmt/format.h>

#include "format/document_bounds.h"
#include "reshard/cli/network_options.h"

namespace dspack::reshard {
namespace {

/// Empty if `parse` takes the text; otherwise what is wrong, as CLI11 wants it.
template <class Parse>
CLI::Validator checked_by(const Parse& parse, const std::string& what) {
  return CLI::Validator(
      [parse](std::string& text) {
        const auto parsed = parse(text);
        return parsed ? std::string() : parsed.error().message;
      },
      "", what);
}

CLI::Option* add_selectors(CLI::App& app, const std::string& name, std::vector<std::string>& into,
                           const std::string& what) {
  return app.add_option(name, into, what)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(checked_by(parse_selector, "selector"))
      ->type_name("SELECTOR");
}

}  // namespace

void add_recipe_options(CLI::App& app, RepackFlags& flags) {
  auto* file = app.add_option("--recipe", flags.recipe,
                              "Take all of this from a recipe file instead, which can also hold a layer map "
                              "(docs/recipes.md)")
                   ->type_name("FILE");
  app.add_option("--by", flags.by,
                 "How to group: expert (one file for each routed expert), expert:N (for N of a layer), layer "
                 "(for all of a layer) or shard:SIZE (files of up to SIZE bytes, as 5GB or 4GiB)")
      ->check(is_grouping())
      ->type_name("GROUPING")
      ->excludes(file);
  add_selectors(app, "--include", flags.include,
                "Take only tensors that fit: \"layers=3-5\", \"layers=3 experts=0-127\", \"role=routed_expert\", "
                "\"name=PATTERN\"; again for others. What is not needed is not read")
      ->excludes(file);
  add_selectors(app, "--exclude", flags.exclude, "Leave out tensors that fit, of those")->excludes(file);
  app.add_option("--transform", flags.transforms,
                 "Change weights: " + transform_help() + "; a selector may follow: \"fp8-to-bf16 role=attention\"")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(checked_by(parse_transform, "transform"))
      ->type_name("KIND")
      ->excludes(file);
  app.add_option("--compress", flags.compress,
                 "Store weight files compressed, as zstd or zstd:LEVEL: smaller, and read by dsrun alone")
      ->check(checked_by(parse_compression, "compression"))
      ->type_name("HOW")
      ->excludes(file);
  app.add_flag(
         "--dedupe", flags.dedupe,
         "Store equal tensors once, as DeepSeek-V3's two embeddings and output heads are (unpack gives both back)")
      ->excludes(file);
  app.add_flag("--drop-mtp", flags.drop_mtp, "Leave out the multi-token-prediction module")->excludes(file);
}

bool names_recipe(const RepackFlags& flags) {
  return !flags.by.empty() || !flags.recipe.empty();
}

Result<Recipe> recipe_of(const RepackFlags& flags) {
  if (!flags.recipe.empty()) {
    TRY_ASSIGN(const std::string text,
               format::read_text(format::posix_file_system(), flags.recipe, format::kRecipeDocument.bytes));
    auto recipe = parse_recipe(text);
    return recipe ? std::move(recipe) : recipe.error().in(flags.recipe);
  }
  Recipe recipe;
  TRY_ASSIGN(recipe.by, parse_grouping(flags.by));
  for (const std::string& text : flags.include) {
    TRY_ASSIGN(Selector selector, parse_selector(text));
    recipe.selection.include.push_back(std::move(selector));
  }
  for (const std::string& text : flags.exclude) {
    TRY_ASSIGN(Selector selector, parse_selector(text));
    recipe.selection.exclude.push_back(std::move(selector));
  }
  for (const std::string& text : flags.transforms) {
    TRY_ASSIGN(Transform transform, parse_transform(text));
    recipe.transforms.push_back(std::move(transform));
  }
  if (!flags.compress.empty()) {
    TRY_ASSIGN(recipe.zstd_level, parse_compression(flags.compress));
  }
  recipe.dedupe = flags.dedupe;
  recipe.drop_mtp = flags.drop_mtp;
  return recipe;
}

}  // namespace dspack::reshard
