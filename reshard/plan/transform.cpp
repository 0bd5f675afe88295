#include "reshard/plan/transform.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/near_word.h"
#include "format/base/size.h"
#include "format/weights/weight_format.h"
#include "kernels/quantise_groups.h"

namespace dspack::reshard {
namespace {

using format::Json;
using format::TensorEntry;

struct RuleInput {
  uint32_t index;             // catalogue index of `weight`
  const TensorEntry& weight;  // any tensor: each rule decides whether it applies
  const format::Checkpoint& source;
  const KnownOfSource& known;
};

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

/// Errors: unsupported, if `values` of `each_bytes` exceed kMaxHeldBytes.
Result<void> check_held(const TensorEntry& tensor, std::optional<uint64_t> values, uint64_t each_bytes) {
  const std::optional<uint64_t> bytes = values ? checked_mul(*values, each_bytes) : std::nullopt;
  if (bytes && *bytes <= kMaxHeldBytes) return {};
  return Error{ErrorKind::unsupported,
               fmt::format("\"{}\" of shape [{}] would need more than {} at once to be converted", tensor.name,
                           fmt::join(tensor.shape, ","), size_words(kMaxHeldBytes))};
}

Result<std::optional<Change>> dequantise(const RuleInput& input, Dtype to, Conversion conversion) {
  if (input.weight.dtype != Dtype::f8_e4m3) return std::optional<Change>();
  if (!is_fp8_matrix(input.weight)) {
    return Error{ErrorKind::unsupported, fmt::format("FP8 tensor \"{}\" of shape [{}] is no matrix named *.weight, and "
                                                     "transforms support no other; exempt it by a selector",
                                                     input.weight.name, fmt::join(input.weight.shape, ","))};
  }
  TRY_ASSIGN(const uint32_t scales, block_scales(input.weight, input.source));
  TRY(check_held(input.weight, checked_mul(input.weight.shape[1], kBlock), bytes_of(to, 1)));
  Change change{.replaced = {input.index, scales}, .made = {}};
  change.made.push_back({.of = input.index,
                         .entry = made_entry(input.weight.name, to, input.weight.shape),
                         .conversion = conversion,
                         .needs = {scales}});
  return std::optional(std::move(change));
}

Result<std::optional<Change>> dequantise_to_bf16(const RuleInput& input) {
  return dequantise(input, Dtype::bf16, Conversion::fp8_to_bf16);
}

Result<std::optional<Change>> dequantise_to_f32(const RuleInput& input) {
  return dequantise(input, Dtype::f32, Conversion::fp8_to_f32);
}

/// The other tensors of a coded matrix: those needed to decode it, and all that exist.
struct Beside {
  std::vector<uint32_t> needs;
  std::vector<uint32_t> all;
};

Beside beside(const RuleInput& input, const format::StoredMatrix& matrix) {
  const std::string name = format::matrix_of_codes(input.weight.name);
  Beside beside;
  for (const format::StoredPlane& plane : matrix.planes) {
    for (const TensorEntry* tensor : plane.tensors) {
      const uint32_t index = index_of(*tensor, input.source);
      if (index != input.index && std::ranges::find(beside.needs, index) == beside.needs.end())
        beside.needs.push_back(index);
    }
  }
  beside.all = beside.needs;
  for (const std::string_view suffix : format::storing_format(input.source, name)->suffixes) {
    const TensorEntry* tensor = input.source.find(format::module_of(name) + std::string(suffix));
    if (tensor == nullptr || tensor == &input.weight) continue;
    const uint32_t index = index_of(*tensor, input.source);
    if (std::ranges::find(beside.all, index) == beside.all.end()) beside.all.push_back(index);
  }
  return beside;
}

/// Bounds the memory for decoding a matrix: its tensors and its planes, counted separately.
Result<void> check_matrix_held(const RuleInput& input, const format::StoredMatrix& matrix,
                               const std::vector<uint32_t>& needs) {
  // Codes come first: if they fit, the sizes of the planes, which follow from the same shape, cannot overflow.
  std::vector<uint64_t> parts{input.weight.range.size()};
  for (const uint32_t index : needs)
    parts.push_back(input.source.tensors()[index].range.size());
  for (const format::StoredPlane& plane : matrix.planes)
    parts.push_back(plane.bytes);
  uint64_t room = kMaxMatrixBytes;
  for (const uint64_t bytes : parts) {
    if (bytes > room) {
      return Error{ErrorKind::unsupported,
                   fmt::format("\"{}\" of shape [{}] would need more than {} at once to be decoded", input.weight.name,
                               fmt::join(input.weight.shape, ","), size_words(kMaxMatrixBytes))};
    }
    room -= bytes;
  }
  return {};
}

/// Decodes codes of any form. FP8 in blocks is decoded as it streams by.
Result<std::optional<Change>> decode(const RuleInput& input, Dtype to) {
  if (is_fp8_matrix(input.weight) && block_scales(input.weight, input.source)) {
    return dequantise(input, to, to == Dtype::bf16 ? Conversion::fp8_to_bf16 : Conversion::fp8_to_f32);
  }
  TRY_ASSIGN(const auto matrix, coded_matrix(input.weight, input.source, input.known.stored));
  if (!matrix) return std::optional<Change>();
  const Beside others = beside(input, *matrix);
  TRY(check_matrix_held(input, *matrix, others.needs));
  Change change{.replaced = others.all, .made = {}};
  change.replaced.push_back(input.index);
  change.made.push_back(
      {.of = input.index,
       .entry = made_entry(format::matrix_of_codes(input.weight.name), to, {matrix->form.out, matrix->form.in}),
       .conversion = to == Dtype::bf16 ? Conversion::decoded_to_bf16 : Conversion::decoded_to_f32,
       .needs = others.needs});
  return std::optional(std::move(change));
}

Result<std::optional<Change>> decode_to_bf16(const RuleInput& input) {
  return decode(input, Dtype::bf16);
}

Result<std::optional<Change>> decode_to_f32(const RuleInput& input) {
  return decode(input, Dtype::f32);
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
                         .conversion = Conversion::bf16_to_fp8});
  change.made.push_back({.of = input.index,
                         .entry = made_entry(format::scale_names(weight.name).front(), Dtype::f32,
                                             {ceil_div(weight.shape[0], kBlock), ceil_div(weight.shape[1], kBlock)}),
                         .conversion = Conversion::bf16_scales});
  return std::optional(std::move(change));
}

/// A form whose codes share a scale in groups of columns.
struct GroupForm {
  std::string_view name;
  uint64_t group = 0;  // columns that share a scale
};

bool is_matrix(const TensorEntry& tensor) {
  return tensor.name.ends_with(".weight") && tensor.shape.size() == 2 && tensor.range.size() != 0;
}

/// Why a tensor cannot be converted to the form; nullopt: it can, or need not be. `is_trained`: it holds the codes that
/// it was trained in, so nothing has been lost yet.
std::optional<Error> group_obstacle(const TensorEntry& weight, bool is_trained, const GroupForm& form) {
  const bool is_byte = weight.dtype == Dtype::u8 || weight.dtype == Dtype::i8;
  const bool is_coded = weight.name.ends_with(".weight") ? is_byte : !format::matrix_of_codes(weight.name).empty();
  if (!is_trained && is_coded) {
    return Error{ErrorKind::unsupported,
                 fmt::format("\"{}\" is quantised already ({}); quantised again it would lose twice. Take the "
                             "checkpoint that it was made from, or exempt it by a selector",
                             weight.name, to_string(weight.dtype))};
  }
  if (!is_matrix(weight)) return std::nullopt;
  if (!is_trained && weight.dtype != Dtype::bf16 && weight.dtype != Dtype::f8_e4m3) {
    return Error{ErrorKind::unsupported,
                 fmt::format("\"{}\" is {}; BF16 and FP8 become {}", weight.name, to_string(weight.dtype), form.name)};
  }
  const uint64_t group = is_trained ? std::max<uint64_t>(form.group, kernels::kMxfp4Group) : form.group;
  if (matrix_columns(weight) % group != 0) {
    return Error{ErrorKind::unsupported,
                 fmt::format("\"{}\" has {} columns, which groups of {} do not fill; exempt it by a selector",
                             weight.name, matrix_columns(weight), group)};
  }
  return std::nullopt;
}

/// The scale tensors that decode a matrix, as catalogue indices; none for BF16.
Result<std::vector<uint32_t>> stored_scales(const RuleInput& input, const TensorEntry* fp4_scales) {
  const TensorEntry& weight = input.weight;
  if (weight.dtype == Dtype::f8_e4m3) {
    TRY_ASSIGN(const uint32_t scales, block_scales(weight, input.source));
    return std::vector<uint32_t>{scales};
  }
  if (fp4_scales == nullptr) return std::vector<uint32_t>();
  const std::vector<uint64_t> grid{weight.shape[0], matrix_columns(weight) / kernels::kMxfp4Group};
  if (fp4_scales->shape != grid) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("\"{}\" has shape [{}]; transforms know FP4 with an E8M0 scale for {} columns, here [{}]",
                    fp4_scales->name, fmt::join(fp4_scales->shape, ","), kernels::kMxfp4Group, fmt::join(grid, ","))};
  }
  TRY(check_held(*fp4_scales, checked_mul(grid[0], grid[1]), sizeof(float)));
  return std::vector<uint32_t>{index_of(*fp4_scales, input.source)};
}

/// A tensor made from a weight, named by the weight's name and a suffix.
struct MadePart {
  std::string_view suffix;
  Dtype dtype = Dtype::f32;
  std::vector<uint64_t> shape;
  Conversion conversion = Conversion::none;
  bool of_values = true;  // depends on the weight's values, not only on its shape
};

bool is_routed_expert(const TensorEntry& tensor) {
  return tensor.place.role == format::Role::routed_expert;
}

/// Whether a tensor, if it is a matrix, is that of a linear layer that integers suit: also the output head.
bool is_linear(const TensorEntry& tensor) {
  return is_quantised_role(tensor) || tensor.place.role == format::Role::head;
}

/// Replaces a matrix by these parts, if it is `of` the kind that is converted.
Result<std::optional<Change>> quantise_groups(const RuleInput& input, const GroupForm& form,
                                              bool (*of)(const TensorEntry& tensor),
                                              std::vector<MadePart> (*parts_of)(uint64_t rows, uint64_t columns)) {
  const TensorEntry& weight = input.weight;
  if (!of(weight)) return std::optional<Change>();
  const TensorEntry* const fp4_scales = trained_fp4_scales(weight, input.source);
  if (const auto obstacle = group_obstacle(weight, fp4_scales != nullptr, form)) return *obstacle;
  if (!is_matrix(weight)) return std::optional<Change>();
  TRY(check_held(weight, checked_mul(matrix_columns(weight), kBlock), sizeof(float)));
  TRY_ASSIGN(const std::vector<uint32_t> needs, stored_scales(input, fp4_scales));
  Change change{.replaced = {input.index}, .made = {}};
  change.replaced.insert(change.replaced.end(), needs.begin(), needs.end());
  for (MadePart& part : parts_of(weight.shape[0], matrix_columns(weight))) {
    change.made.push_back(
        {.of = input.index,
         .entry = made_entry(weight.name + std::string(part.suffix), part.dtype, std::move(part.shape)),
         .conversion = part.conversion,
         .needs = part.of_values ? needs : std::vector<uint32_t>()});
  }
  return std::optional(std::move(change));
}

std::vector<MadePart> integer_parts(uint64_t rows, uint64_t columns, uint64_t in_word, Conversion codes,
                                    Conversion scales) {
  return {{"_packed", Dtype::i32, {rows, columns / in_word}, codes},
          {"_scale", Dtype::bf16, {rows, columns / kernels::kIntegerGroup}, scales},
          {"_shape", Dtype::i64, {2}, Conversion::packed_shape, false}};
}

std::vector<MadePart> int4_parts(uint64_t rows, uint64_t columns) {
  return integer_parts(rows, columns, 8, Conversion::int4_codes, Conversion::int4_scales);
}

std::vector<MadePart> int8_parts(uint64_t rows, uint64_t columns) {
  return integer_parts(rows, columns, 4, Conversion::int8_codes, Conversion::int8_scales);
}

std::vector<MadePart> nvfp4_parts(uint64_t rows, uint64_t columns) {
  return {{"_packed", Dtype::u8, {rows, columns / 2}, Conversion::nvfp4_codes},
          {"_scale", Dtype::f8_e4m3, {rows, columns / kernels::kNvfp4Group}, Conversion::nvfp4_scales},
          {"_global_scale", Dtype::f32, {1}, Conversion::nvfp4_global, false}};
}

constexpr GroupForm kInt4{.name = "int4", .group = kernels::kIntegerGroup};

Result<std::optional<Change>> weights_to_int4(const RuleInput& input) {
  return quantise_groups(input, kInt4, is_linear, int4_parts);
}

Result<std::optional<Change>> weights_to_int8(const RuleInput& input) {
  return quantise_groups(input, {.name = "int8", .group = kernels::kIntegerGroup}, is_linear, int8_parts);
}

Result<std::optional<Change>> experts_to_int4(const RuleInput& input) {
  return quantise_groups(input, kInt4, is_routed_expert, int4_parts);
}

Result<std::optional<Change>> experts_to_nvfp4(const RuleInput& input) {
  return quantise_groups(input, {.name = "NVFP4", .group = kernels::kNvfp4Group}, is_routed_expert, nvfp4_parts);
}

Result<std::optional<Change>> narrow_scales(const RuleInput& input) {
  const std::optional<uint32_t> index = narrowable_scales(input.weight, input.source);
  if (!index || !input.known.exact_scales(*index)) return std::optional<Change>();
  const TensorEntry& scales = input.source.tensors()[*index];
  Change change{.replaced = {*index}, .made = {}};
  change.made.push_back({.of = *index,
                         .entry = made_entry(scales.name, Dtype::f8_e8m0, scales.shape),
                         .conversion = Conversion::f32_to_e8m0});
  return std::optional(std::move(change));
}

constexpr char kKind[] = "kind";

struct TransformInfo {
  TransformKind kind;
  std::string_view name;
  std::string_view meaning;
  Result<std::optional<Change>> (*rule)(const RuleInput& input);
};

constexpr std::array<TransformInfo, 10> kTransformTable{{
    {TransformKind::fp8_to_bf16, "fp8-to-bf16", "FP8 weights with block scales become BF16", dequantise_to_bf16},
    {TransformKind::fp8_to_f32, "fp8-to-f32", "FP8 weights with block scales become F32", dequantise_to_f32},
    {TransformKind::quantised_to_bf16, "quantised-to-bf16",
     "weights of every quantised form that dsrun reads become BF16", decode_to_bf16},
    {TransformKind::quantised_to_f32, "quantised-to-f32", "the same become F32", decode_to_f32},
    {TransformKind::bf16_to_fp8, "bf16-to-fp8", "BF16 matrices become FP8 with a scale for each block of 128 x 128",
     quantise_to_fp8},
    {TransformKind::scales_to_e8m0, "scales-to-e8m0", "F32 scales become E8M0 where that loses nothing", narrow_scales},
    {TransformKind::weights_to_int4, "weights-to-int4",
     "matrices of attention, MLPs, experts and the output head become int4 with a BF16 scale for each 32 columns, as "
     "compressed-tensors stores it",
     weights_to_int4},
    {TransformKind::weights_to_int8, "weights-to-int8", "the same matrices become int8, likewise", weights_to_int8},
    {TransformKind::experts_to_int4, "experts-to-int4", "weights-to-int4 of routed experts alone", experts_to_int4},
    {TransformKind::experts_to_nvfp4, "experts-to-nvfp4",
     "routed experts become NVFP4, FP4 with an FP8 scale for each 16 columns, as compressed-tensors stores it",
     experts_to_nvfp4},
}};

const TransformInfo& info(TransformKind kind) {
  return *std::ranges::find(kTransformTable, kind, &TransformInfo::kind);
}

Result<TransformKind> parse_kind(std::string_view name) {
  const auto* found = std::ranges::find(kTransformTable, name, &TransformInfo::name);
  if (found != kTransformTable.end()) return found->kind;
  std::vector<std::string> names;
  names.reserve(kTransformTable.size());
  for (const TransformInfo& entry : kTransformTable)
    names.emplace_back(entry.name);
  return Error{ErrorKind::invalid, fmt::format("\"{}\" is no transform; there are \"{}\"{}", name,
                                               fmt::join(names, "\", \""), format::did_you_mean(name, names))};
}

}  // namespace

std::string_view to_string(TransformKind kind) {
  return info(kind).name;
}

std::string transform_help() {
  std::string text;
  for (const TransformInfo& entry : kTransformTable)
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
                                    const KnownOfSource& known) {
  if (!fits(transform.where, source.tensors()[weight])) return std::optional<Change>();
  return info(transform.kind).rule({weight, source.tensors()[weight], source, known});
}

Result<std::optional<format::StoredMatrix>> coded_matrix(const TensorEntry& codes, const format::Checkpoint& source,
                                                         const format::Quantization& stored) {
  const std::string name = format::matrix_of_codes(codes.name);
  const format::WeightFormat* format = name.empty() ? nullptr : format::storing_format(source, name);
  if (format == nullptr || format->shape == nullptr) return std::optional<format::StoredMatrix>();
  TRY_ASSIGN(const format::MatrixShape shape, format->shape(source, name, stored));
  TRY_ASSIGN(format::StoredMatrix matrix, format::find_matrix(source, name, shape.out, shape.in, stored));
  if (&matrix.planes[format::kCodes].elements() != &codes) return std::optional<format::StoredMatrix>();
  return std::optional(std::move(matrix));
}

bool decodes(TransformKind kind) {
  return kind == TransformKind::quantised_to_bf16 || kind == TransformKind::quantised_to_f32;
}

bool decodes(Conversion conversion) {
  return conversion == Conversion::decoded_to_bf16 || conversion == Conversion::decoded_to_f32;
}

bool is_quantised_role(const TensorEntry& tensor) {
  switch (tensor.place.role) {
    case format::Role::attention:
    case format::Role::dense_mlp:
    case format::Role::shared_expert:
    case format::Role::routed_expert: return true;
    default: return false;
  }
}

const TensorEntry* trained_fp4_scales(const TensorEntry& weight, const format::Checkpoint& source) {
  if (weight.dtype != Dtype::i8 || !is_matrix(weight)) return nullptr;
  const TensorEntry* scales = source.find_scale(weight.name);
  return scales != nullptr && scales->dtype == Dtype::f8_e8m0 ? scales : nullptr;
}

uint64_t matrix_columns(const TensorEntry& weight) {
  constexpr uint64_t kCodesInByte = 2;
  return weight.dtype == Dtype::i8 ? checked_mul(weight.shape.at(1), kCodesInByte).value_or(UINT64_MAX)
                                   : weight.shape.at(1);
}

Result<uint32_t> block_scales(const TensorEntry& weight, const format::Checkpoint& source) {
  const TensorEntry* scales = source.find_scale(weight.name);
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
  const TensorEntry* scales = is_fp8_matrix(weight) ? source.find_scale(weight.name) : nullptr;
  if (scales == nullptr || scales->dtype != Dtype::f32) return std::nullopt;
  return index_of(*scales, source);
}

}  // namespace dspack::reshard
