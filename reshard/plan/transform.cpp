#include "reshard/plan/transform.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "reshard/plan/transform_rules.h"

namespace dspack::reshard {
namespace {

using format::Json;

constexpr char kKind[] = "kind";

struct TransformInfo {
  TransformKind kind;
  std::string_view name;
  std::string_view meaning;
  Result<std::optional<Change>> (*rule)(const RuleInput& input);
};

constexpr std::array<TransformInfo, 4> kTransforms{{
    {TransformKind::fp8_to_bf16, "fp8-to-bf16", "FP8 weights with block scales become BF16", dequantise_to_bf16},
    {TransformKind::fp8_to_f32, "fp8-to-f32", "FP8 weights with block scales become F32", dequantise_to_f32},
    {TransformKind::bf16_to_fp8, "bf16-to-fp8", "BF16 matrices become FP8 with a scale for each block of 128 x 128",
     quantise_to_fp8},
    {TransformKind::scales_to_e8m0, "scales-to-e8m0", "F32 scales become E8M0 where that loses nothing", narrow_scales},
}};

const TransformInfo& info(TransformKind kind) {
  return *std::ranges::find(kTransforms, kind, &TransformInfo::kind);
}

Result<TransformKind> parse_kind(std::string_view name) {
  const auto* found = std::ranges::find(kTransforms, name, &TransformInfo::name);
  if (found != kTransforms.end()) return found->kind;
  std::string names;
  for (const TransformInfo& entry : kTransforms)
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", entry.name);
  return Error{ErrorKind::invalid, fmt::format("\"{}\" is no transform; there are {}", name, names)};
}

}  // namespace

std::string_view to_string(TransformKind kind) {
  return info(kind).name;
}

std::string transform_help() {
  std::string text;
  for (const TransformInfo& entry : kTransforms)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", entry.name, entry.meaning);
  return text;
}

Result<Transform> transform_of(const Json& value) {
  if (value.is_string()) return parse_transform(value.get<std::string>());
  if (!value.is_object())
    return Error{ErrorKind::invalid, R"(a transform is an object such as {"kind":"fp8-to-bf16"})"};
  TRY_ASSIGN(const std::string name, format::json_string(value, kKind));
  Transform transform;
  TRY_ASSIGN(transform.kind, parse_kind(name));
  Json where = value;
  where.erase(kKind);
  if (where.empty()) return transform;
  TRY_ASSIGN(transform.where, selector_of(where));
  return transform;
}

Json transform_json(const Transform& transform) {
  Json json = selector_json(transform.where);
  json[kKind] = to_string(transform.kind);
  return json;
}

Result<Transform> parse_transform(std::string_view text) {
  const size_t space = std::min(text.find(' '), text.size());
  Transform transform;
  TRY_ASSIGN(transform.kind, parse_kind(text.substr(0, space)));
  if (space == text.size()) return transform;
  TRY_ASSIGN(transform.where, parse_selector(text.substr(space + 1)));
  return transform;
}

Result<std::optional<Change>> apply(const Transform& transform, uint32_t weight, const format::Checkpoint& source,
                                    const std::function<bool(uint32_t)>& exact_scales) {
  if (!fits(transform.where, source.tensors()[weight])) return std::optional<Change>();
  return info(transform.kind).rule({weight, source.tensors()[weight], source, exact_scales});
}

}  // namespace dspack::reshard
