// A recipe: what the packed repository should be like. Flags of the command line are shorthand for it.
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
  std::optional<format::LayerSelection> layers{};  // that a token passes; absent: all, once each
  Selection selection{};                           // tensors that are taken
  std::vector<Transform> transforms{};             // of each weight the first that fits
  std::optional<int> zstd_level{};                 // store weight files compressed
  bool dedupe = false;                             // store equal tensors once
  bool drop_mtp = false;                           // leave out the multi-token-prediction module
};

/// FP8 and BF16 weights have no matches to look for, only values of unequal frequency: higher levels give next to
/// nothing and take longer (docs/recipes.md has the figures).
inline constexpr int kDefaultZstdLevel = 1;
inline constexpr int kMostZstdLevel = 19;
/// "zstd" or "zstd:LEVEL" -> the level.
[[nodiscard]] Result<int> parse_compression(std::string_view text);

/// A recipe file: a JSON object with the key "by" and others of docs/recipes.md.
[[nodiscard]] Result<Recipe> parse_recipe(std::string_view json);
/// As it stands in the manifest; parse_recipe reads it back.
[[nodiscard]] format::Json recipe_json(const Recipe& recipe);

}  // namespace dspack::reshard
