// A recipe: how a repository is to be packed. Command-line flags are shorthand for it.
// Threads: a plain value. Errors: invalid.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "format/json.h"
#include "format/layer_map.h"
#include "format/packing/grouping.h"
#include "reshard/plan/selection.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {

using format::Grouping;
using format::parse_grouping;
using format::to_string;

struct Recipe {
  Grouping by;
  std::optional<format::LayerSelection> layers{};  // the layers that a token passes; absent: all, once each
  Selection selection{};                           // which tensors are taken
  std::vector<Transform> transforms{};             // the first that fits a weight applies to it
  std::optional<int> zstd_level{};                 // store weight files compressed
  bool dedupe = false;                             // store equal tensors once
  bool drop_mtp = false;                           // leave out the multi-token-prediction module
};

/// In FP8 and BF16 weights zstd finds no matches, only unequal symbol frequencies: higher levels gain next to nothing
/// and take longer (figures in docs/recipes.md).
inline constexpr int kDefaultZstdLevel = 1;
inline constexpr int kMaxZstdLevel = 19;
/// "zstd" or "zstd:LEVEL" -> the level.
[[nodiscard]] Result<int> parse_compression(std::string_view text);

/// Parses a recipe file: a JSON object with the key "by" and optional others (docs/recipes.md).
[[nodiscard]] Result<Recipe> parse_recipe(std::string_view json);
/// The recipe as the manifest stores it; parse_recipe reads it back.
[[nodiscard]] format::Json recipe_json(const Recipe& recipe);

}  // namespace dspack::reshard
