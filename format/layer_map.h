// Layer maps: the sequence of layers that a token passes, if it is not each layer once, and its two notations: layers
// by number ("0-3,2-5,4-10"), or ranges by their share of the depth ("(0,.5),(.3,.8),(.5,1)"). docs/layer-maps.md
// states the rules.
// Threads: pure functions of plain values. Errors: invalid, with the wrong part of the text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/json.h"

namespace dspack::format {

/// Physical layers in the order of the pass; never empty.
using LayerMap = std::vector<LayerId>;

/// Most layers of a pass. Released models have below 100; each one costs a layer of the KV cache.
inline constexpr size_t kMaxPassLayers = 4096;

/// A share of the model's depth, exact: 0 is the beginning, kWholeDepth the end.
using DepthShare = uint64_t;
inline constexpr DepthShare kWholeDepth = 1'000'000'000'000;  // twelve decimal places

struct DepthRange {
  DepthShare start = 0;
  DepthShare end = 0;  // at least `start`
  auto operator<=>(const DepthRange&) const = default;
};

/// Ranges by depth in the order of the pass; never empty.
using RatioRepeat = std::vector<DepthRange>;

/// The requested layers, before the number of layers is known.
using LayerSelection = std::variant<LayerMap, RatioRepeat>;

/// Numbers and inclusive ascending ranges, separated by commas; spaces are ignored.
[[nodiscard]] Result<LayerMap> parse_layers(std::string_view text);
/// The inverse, in the fewest ranges: "0-3,2-5".
[[nodiscard]] std::string to_string(const LayerMap& layers);

/// Pairs of decimals from 0 to 1 in parentheses, separated by commas; spaces and the order in a pair are ignored.
[[nodiscard]] Result<RatioRepeat> parse_ratio_repeat(std::string_view text);
/// The inverse: "(0,0.5),(0.3,0.8)".
[[nodiscard]] std::string to_string(const RatioRepeat& ratio);

/// A list of layer numbers in a recipe or manifest.
[[nodiscard]] Result<LayerMap> layer_map_of(const Json& value);
[[nodiscard]] Json layer_map_json(const LayerMap& layers);

/// The sequence in a model of `layers` layers (at least 1). A range of shares goes from layer floor(start x layers) to
/// ceil(end x (layers - 1)), both included; then the sequence is filled so that it begins with the first layer, ends
/// with the last, and never skips a layer going forward. Errors: also layers that the model lacks, too long a pass.
[[nodiscard]] Result<LayerMap> select_layers(const LayerSelection& selection, uint32_t layers);

}  // namespace dspack::format
