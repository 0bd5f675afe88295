// A recipe. Input: its JSON.
#include "reshard/plan/recipe.h"
#include "tests/fuzz/target.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto recipe = reshard::parse_recipe(fuzz::as_text(data, size));
  if (!recipe) {
    fuzz::check_refusal(recipe.error());
    return 0;
  }
  const std::string text = format::canonical_json(reshard::recipe_json(*recipe));
  const auto again = reshard::parse_recipe(text);
  DSPACK_CHECK(again.has_value(), text);
  DSPACK_CHECK(format::canonical_json(reshard::recipe_json(*again)) == text, text);
  DSPACK_CHECK(again->selection.include.size() == recipe->selection.include.size() &&
                   again->selection.exclude.size() == recipe->selection.exclude.size() &&
                   again->transforms.size() == recipe->transforms.size() && again->drop_mtp == recipe->drop_mtp,
               text);
  DSPACK_CHECK(again->by.kind == recipe->by.kind && again->by.experts_per_file == recipe->by.experts_per_file &&
                   again->by.shard_bytes == recipe->by.shard_bytes && again->layers == recipe->layers,
               text);
  return 0;
}
