#include "reshard/plan/transform_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/checked.h"

namespace dspack::reshard {
namespace {

using format::TensorEntry;

bool is_fp8_matrix(const TensorEntry& tensor) {
  return tensor.dtype == Dtype::f8_e4m3 && tensor.shape.size() == 2 && tensor.name.ends_with(".weight");
}

uint32_t index_of(const TensorEntry& tensor, const format::Checkpoint& source) {
  return narrow<uint32_t>(static_cast<uint64_t>(&tensor - source.tensors().data()));
}

TensorEntry made_entry(std::string name, Dtype dtype, std::vector<uint64_t> shape) {
  uint64_t values = 1;
  for (const uint64_t dimension : shape)
    values *= dimension;
  TensorEntry entry{.name = std::move(name),
                    .place = {},
                    .dtype = dtype,
                    .shape = std::move(shape),
                    .file = 0,
                    .range = {0, bytes_of(dtype, values)},
                    .digest = {}};
  entry.place = format::parse_tensor_name(entry.name);
  return entry;
}

const TensorEntry* find_scales(const TensorEntry& weight, const format::Checkpoint& source) {
  for (const std::string& name : format::scale_names(weight.name)) {
    if (const TensorEntry* found = source.find(name)) return found;
  }
  return nullptr;
}

/// Whether `values` of `each_bytes` fit into memory while a tensor is converted.
Result<void> check_held(const TensorEntry& tensor, std::optional<uint64_t> values, uint64_t each_bytes) {
  const std::optional<uint64_t> bytes = values ? checked_mul(*values, each_bytes) : std::nullopt;
  if (bytes && *bytes <= kMaxHeldBytes) return {};
  return Error{ErrorKind::unsupported,
               fmt::format("\"{}\" of shape [{}] would need more than {} bytes at once to be converted", tensor.name,
                           fmt::join(tensor.shape, ","), kMaxHeldBytes)};
}

Result<std::optional<Change>> dequantise(const RuleInput& input, Dtype to, Conversion conversion) {
  if (input.weight.dtype != Dtype::f8_e4m3) return std::optional<Change>();
  if (!is_fp8_matrix(input.weight)) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("FP8 tensor \"{}\" of shape [{}] is no matrix named *.weight, and transforms know no other; "
                    "keep it from them by a selector",
                    input.weight.name, fmt::join(input.weight.shape, ","))};
  }
  TRY_ASSIGN(const uint32_t scales, block_scales(input.weight, input.source));
  TRY(check_held(input.weight, checked_mul(input.weight.shape[1], kBlock), bytes_of(to, 1)));
  Change change{.replaced = {input.index, scales}, .made = {}};
  change.made.push_back({.of = input.index,
                         .entry = made_entry(input.weight.name, to, input.weight.shape),
                         .conversion = conversion,
                         .scales = scales});
  return std::optional(std::move(change));
}

}  // namespace

bool is_quantised_role(const TensorEntry& tensor) {
  switch (tensor.place.role) {
    case format::Role::attention:
    case format::Role::dense_mlp:
    case format::Role::shared_expert:
    case format::Role::routed_expert: return true;
    default: return false;
  }
}

Result<uint32_t> block_scales(const TensorEntry& weight, const format::Checkpoint& source) {
  const TensorEntry* scales = find_scales(weight, source);
  if (scales == nullptr) {
    return Error{ErrorKind::invalid, fmt::format("FP8 tensor \"{}\" has no scale (\"{}\" is missing)", weight.name,
                                                 format::scale_names(weight.name).front())};
  }
  const std::vector<uint64_t> grid{ceil_div(weight.shape[0], kBlock), ceil_div(weight.shape[1], kBlock)};
  const bool known = scales->dtype == Dtype::f32 || scales->dtype == Dtype::f8_e8m0;
  if (!known || scales->shape != grid) {
    return Error{ErrorKind::unsupported,
                 fmt::format("\"{}\" is {} of shape [{}]; transforms know F32 and E8M0 scales of blocks of {} x {}, "
                             "here [{}]",
                             scales->name, to_string(scales->dtype), fmt::join(scales->shape, ","), kBlock, kBlock,
                             fmt::join(grid, ","))};
  }
  TRY(check_held(*scales, checked_mul(grid[0], grid[1]), sizeof(float)));
  return index_of(*scales, source);
}

std::optional<uint32_t> narrowable_scales(const TensorEntry& weight, const format::Checkpoint& source) {
  const TensorEntry* scales = is_fp8_matrix(weight) ? find_scales(weight, source) : nullptr;
  if (scales == nullptr || scales->dtype != Dtype::f32) return std::nullopt;
  return index_of(*scales, source);
}

Result<std::optional<Change>> dequantise_to_bf16(const RuleInput& input) {
  return dequantise(input, Dtype::bf16, Conversion::fp8_to_bf16);
}

Result<std::optional<Change>> dequantise_to_f32(const RuleInput& input) {
  return dequantise(input, Dtype::f32, Conversion::fp8_to_f32);
}

Result<std::optional<Change>> quantise_to_fp8(const RuleInput& input) {
  const TensorEntry& weight = input.weight;
  const bool concerned = weight.dtype == Dtype::bf16 && weight.shape.size() == 2 && weight.range.size() != 0 &&
                         weight.name.ends_with(".weight") && is_quantised_role(weight);
  if (!concerned) return std::optional<Change>();
  TRY(check_held(weight, checked_mul(weight.shape[1], kBlock), sizeof(uint16_t)));
  Change change{.replaced = {input.index}, .made = {}};
  change.made.push_back({.of = input.index,
                         .entry = made_entry(weight.name, Dtype::f8_e4m3, weight.shape),
                         .conversion = Conversion::bf16_to_fp8,
                         .scales = {}});
  change.made.push_back({.of = input.index,
                         .entry = made_entry(format::scale_names(weight.name).front(), Dtype::f32,
                                             {ceil_div(weight.shape[0], kBlock), ceil_div(weight.shape[1], kBlock)}),
                         .conversion = Conversion::bf16_scales,
                         .scales = {}});
  return std::optional(std::move(change));
}

Result<std::optional<Change>> narrow_scales(const RuleInput& input) {
  const std::optional<uint32_t> index = narrowable_scales(input.weight, input.source);
  if (!index || !input.exact_scales(*index)) return std::optional<Change>();
  const TensorEntry& scales = input.source.tensors()[*index];
  Change change{.replaced = {*index}, .made = {}};
  change.made.push_back({.of = *index,
                         .entry = made_entry(scales.name, Dtype::f8_e8m0, scales.shape),
                         .conversion = Conversion::f32_to_e8m0,
                         .scales = {}});
  return std::optional(std::move(change));
}

}  // namespace dspack::reshard
