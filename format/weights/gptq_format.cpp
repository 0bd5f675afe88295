#include <fmt/format.h>

#include "format/weights/transposed_integers.h"

namespace dspack::format {

namespace {

// qweight I32 [in / 8, out], qzeros I32 [groups, out / 8], scales F16 [groups, out], g_idx I32 [in], the group of each
// row (AutoGPTQ, nn_modules/qlinear). Zero points are stored less one unless "checkpoint_format" is "gptq_v2", which
// cannot be seen from the tensors.
constexpr std::array<std::string_view, 4> kGptqSuffixes = {"qweight", "qzeros", "scales", "g_idx"};

bool stores_gptq(const Checkpoint& checkpoint, std::string_view name) {
  return find_tensor(checkpoint, module_of(name) + "qweight").has_value();
}

Result<StoredMatrix> find_gptq(const Checkpoint& checkpoint, const MatrixRequest& request) {
  const std::string module = module_of(request.name);
  if (const auto scales = find_tensor(checkpoint, module + "scales"); !scales) return scales.error();
  if (!request.stored.zero_offset) {
    TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, module + "qweight"));
    return Error{ErrorKind::invalid,
                 fmt::format("{} looks like GPTQ, and config.json has no quantization_config with \"quant_method\": "
                             "\"gptq\", which says how its zero points are stored",
                             place_of(checkpoint, *codes))};
  }
  const auto order = find_tensor(checkpoint, module + "g_idx");
  const bool is_ordered = request.stored.ordered.value_or(false);
  if (is_ordered && !order) return order.error();
  return find_transposed(
      checkpoint,
      {.matrix = request,
       .layout = {.along = PackedAlong::in, .interleaved = false, .zero_offset = *request.stored.zero_offset},
       .order = order ? *order : nullptr,
       .ordered = is_ordered});
}

Result<MatrixShape> gptq_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& stored) {
  TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, module_of(name) + "qweight"));
  TRY_ASSIGN(MatrixShape shape, shape_of_codes(checkpoint, *codes, 32 / stored.bits.value_or(4), true));
  // The last words may be padded; g_idx has an entry per existing column.
  const auto order = find_tensor(checkpoint, module_of(name) + "g_idx");
  const uint64_t columns = order && (*order)->shape.size() == 1 ? (*order)->shape[0] : 0;
  if (columns >= 1 && columns < shape.in) shape.in = static_cast<uint32_t>(columns);
  return shape;
}

// AutoAWQ's "gemm": qweight I32 [in, out / 8], qzeros I32 [groups, out / 8], scales F16 [groups, out] (AutoAWQ,
// awq/utils/packing_utils.py). GPTQ's tensors have the same names, but its qweight is as wide as its scales.
constexpr std::array<std::string_view, 3> kAwqSuffixes = {"qweight", "qzeros", "scales"};

bool stores_awq(const Checkpoint& checkpoint, std::string_view name) {
  const auto codes = find_tensor(checkpoint, module_of(name) + "qweight");
  if (!codes || (*codes)->shape.size() != 2) return false;
  const auto scales = find_tensor(checkpoint, module_of(name) + "scales");
  return scales && !(*scales)->shape.empty() && (*scales)->shape.back() != (*codes)->shape.back();
}

Result<StoredMatrix> find_awq(const Checkpoint& checkpoint, const MatrixRequest& request) {
  return find_transposed(
      checkpoint, {.matrix = request, .layout = {.along = PackedAlong::out, .interleaved = true, .zero_offset = 0}});
}

Result<MatrixShape> awq_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& /*stored*/) {
  TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, module_of(name) + "qweight"));
  TRY_ASSIGN(const auto* scales, find_tensor(checkpoint, module_of(name) + "scales"));
  TRY_ASSIGN(MatrixShape shape, shape_of_codes(checkpoint, *codes, 1, true));
  TRY_ASSIGN(const MatrixShape groups, shape_of_codes(checkpoint, *scales, 1, true));
  shape.out = groups.out;  // the last words of codes may be padded
  return shape;
}

}  // namespace

WeightFormat gptq_format() {
  return {.description = "GPTQ",
          .suffixes = kGptqSuffixes,
          .stores = stores_gptq,
          .find = find_gptq,
          .scaled = {},
          .shape = gptq_shape};
}

WeightFormat awq_format() {
  return {.description = "AWQ",
          .suffixes = kAwqSuffixes,
          .stores = stores_awq,
          .find = find_awq,
          .scaled = {},
          .shape = awq_shape};
}

}  // namespace dspack::format
