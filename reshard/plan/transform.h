// Transforms: what a recipe changes about weights. The one place that knows which there are; a new format is a line of
// its table, a rule and a converter.
// Threads: plain values and pure functions. Errors: invalid (a recipe's text), unsupported (a tensor that a transform
// should change and cannot).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/plan/selection.h"

namespace dspack::reshard {

enum class TransformKind {
  fp8_to_bf16,     // FP8 weights with block scales -> BF16, the scales are used up
  fp8_to_f32,      // the same -> F32
  bf16_to_fp8,     // BF16 matrices -> FP8 E4M3 with one F32 scale a block of 128 x 128
  scales_to_e8m0,  // F32 block scales -> E8M0 where that loses nothing
};

/// A transform of a recipe, and the tensors that it is for: all that it fits, unless the selector says otherwise.
struct Transform {
  TransformKind kind = TransformKind::fp8_to_bf16;
  Selector where{};
};

/// {"kind":"fp8-to-bf16","role":"routed_expert"}: "kind" and perhaps keys of a selector.
[[nodiscard]] Result<Transform> transform_of(const format::Json& value);
[[nodiscard]] format::Json transform_json(const Transform& transform);
/// As a command line has it: "fp8-to-bf16" or "fp8-to-bf16 role=routed_expert".
[[nodiscard]] Result<Transform> parse_transform(std::string_view text);
[[nodiscard]] std::string_view to_string(TransformKind kind);
/// Names and meanings, one line each, for help texts.
[[nodiscard]] std::string transform_help();

/// How the bytes of one tensor of the result are made of those of one tensor of the source, as they stream by.
enum class Conversion {
  none,         // they are the same
  fp8_to_bf16,  // needs the scales
  fp8_to_f32,   // needs the scales
  bf16_to_fp8,  // the matrix
  bf16_scales,  // the scales that go with it, made of the matrix too
  f32_to_e8m0,
};

/// A tensor of the result that is not the source's as it was.
struct Made {
  uint32_t of = 0;            // catalogue index of the source's tensor that it is made of
  format::TensorEntry entry;  // its range is {0, bytes}
  Conversion conversion = Conversion::none;
  std::optional<uint32_t> scales{};  // catalogue index of the source's tensor that the conversion needs whole
};

/// What a transform makes of a weight and of what belongs to it.
struct Change {
  std::vector<uint32_t> replaced;  // catalogue indices: these are not in the result
  std::vector<Made> made;          // these are instead
};

/// nullopt: the transform does not concern the weight. `exact_scales` tells of an F32 scale tensor whether all its
/// values are powers of two; asked by scales_to_e8m0 alone.
[[nodiscard]] Result<std::optional<Change>> apply(const Transform& transform, uint32_t weight,
                                                  const format::Checkpoint& source,
                                                  const std::function<bool(uint32_t)>& exact_scales);

}  // namespace dspack::reshard
