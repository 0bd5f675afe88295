#include "reshard/cli/recipe_options.h"

#include "format/file_system.h"
#include "format/json.h"

namespace dspack::reshard {
namespace {

/// Appends the result of `parse` for each text.
template <class T>
format::OptionTable::Take appender(std::vector<T>& into, Result<T> (*parse)(std::string_view)) {
  return [&into, parse](const std::string& text) -> Result<void> {
    TRY_ASSIGN(T parsed, parse(text));
    into.push_back(std::move(parsed));
    return {};
  };
}

/// A name without a folder or extension refers to an installed recipe, unless such a file exists here.
format::Path recipe_file(const std::string& named) {
  format::FileSystem& files = format::posix_file_system();
  const auto exists = [&files](const format::Path& path) {
    const auto info = files.stat(path);
    return info && info->has_value();
  };
  if (named.find_first_of("/.") != std::string::npos || exists(named)) return named;
  const auto program = files.read_link("/proc/self/exe");
  if (!program || !*program) return named;
  const auto installed = ((*program)->parent_path() / "../share/dspack/recipes" / (named + ".json")).lexically_normal();
  return exists(installed) ? installed : format::Path(named);
}

}  // namespace

void add_recipe_options(format::OptionTable& table, RecipeFlags& flags) {
  Recipe& recipe = flags.recipe;
  table.heading("Recipe");
  auto file =
      table.add("--recipe", "FILE|NAME", flags.file,
                "A recipe file, or the name of one that was installed (by-layer), in place of the other options "
                "here; it can also hold a layer map (docs/recipes.md)");
  const auto take_grouping = [&flags](const std::string& text) -> Result<void> {
    TRY_ASSIGN(flags.recipe.by, format::parse_grouping(text));
    flags.has_grouping = true;
    return {};
  };
  table
      .take("--by", "GROUPING", take_grouping,
            "How to group: expert (one file for each routed expert), expert:N (for N of a layer), layer (for all of a "
            "layer) or shard:SIZE (files of up to SIZE bytes, as 5GB or 4GiB)")
      .excludes(file);
  table
      .each("--include", "SELECTOR", appender(recipe.selection.include, parse_selector),
            "Take only tensors that match: \"layers=3-5\", \"layers=3 experts=0-127\", \"role=routed_expert\", "
            "\"name=PATTERN\"; repeatable. What is not needed is not read")
      .excludes(file);
  table
      .each("--exclude", "SELECTOR", appender(recipe.selection.exclude, parse_selector),
            "Of these, leave out tensors that match")
      .excludes(file);
  table
      .each("--transform", "KIND", appender(recipe.transforms, parse_transform),
            "Change weights: " + transform_help() + "; a selector may follow: \"fp8-to-bf16 role=attention\"")
      .excludes(file);
  table
      .add("--compress", "HOW", recipe.zstd_level, parse_compression,
           "Store weight files compressed, as zstd or zstd:LEVEL: smaller, and read by dsrun alone")
      .excludes(file);
  table
      .flag("--dedupe", recipe.dedupe,
            "Store equal tensors once, as DeepSeek-V3's two embeddings and output heads are (unpack gives both back)")
      .excludes(file);
  table.flag("--drop-mtp", recipe.drop_mtp, "Leave out the multi-token-prediction module").excludes(file);
}

Result<Recipe> recipe_of(const RecipeFlags& flags) {
  if (flags.file.empty()) return flags.recipe;
  const format::Path file = recipe_file(flags.file);
  TRY_ASSIGN(const std::string text,
             format::read_text(format::posix_file_system(), file, format::kRecipeDocument.bytes));
  auto recipe = parse_recipe(text);
  return recipe ? std::move(recipe) : recipe.error().in(file.string());
}

}  // namespace dspack::reshard
