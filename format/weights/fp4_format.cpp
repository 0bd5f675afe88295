#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "format/base/size.h"
#include "format/weights/weight_format.h"

namespace dspack::format {

namespace {

// Two E2M1 codes per byte, the first in the low half. MXFP4 has an E8M0 scale per 32 columns, NVFP4 an E4M3 one per 16
// and an FP32 one for the matrix (OCP Microscaling Formats 1.0; NVIDIA Model Optimizer; compressed-tensors). The names:
//   modelopt             weight U8, weight_scale F8_E4M3, weight_scale_2 (multiplies)
//   compressed-tensors   weight_packed U8, weight_scale F8_E4M3, weight_global_scale (divides)
//   compressed-tensors   weight_packed U8, weight_scale U8 or F8_E8M0
//   DeepSeek-V4          weight I8, scale F8_E8M0
// input_scale and the like are factors for rounding activations in other programs; here activations stay FP32.
constexpr std::array<std::string_view, 8> kFp4Suffixes = {"weight",         "weight_packed",       "weight_scale",
                                                          "weight_scale_2", "weight_global_scale", "scale",
                                                          "input_scale",    "input_global_scale"};
constexpr std::array<ScaledCodes, 2> kFp4Scaled = {{
    {.ending = ".weight", .dtype = Dtype::u8, .name = "U8 (FP4)", .scale = "weight_scale"},
    {.ending = ".weight_packed", .dtype = Dtype::u8, .name = "U8 (FP4)", .scale = "weight_scale"},
}};
constexpr uint32_t kNvGroup = 16;
constexpr uint32_t kMxGroup = 32;

/// The tensor of FP4 codes; nullptr: the matrix is stored in another way.
const TensorEntry* find_fp4_codes(const Checkpoint& checkpoint, std::string_view name) {
  const auto packed = find_tensor(checkpoint, module_of(name) + "weight_packed");
  if (packed && (*packed)->dtype == Dtype::u8) return *packed;
  const auto weight = find_tensor(checkpoint, name);
  if (!weight) return nullptr;
  if ((*weight)->dtype == Dtype::u8) return *weight;
  if ((*weight)->dtype != Dtype::i8) return nullptr;
  const auto* scale = checkpoint.find_scale((*weight)->name);
  return scale != nullptr && scale->dtype == Dtype::f8_e8m0 ? *weight : nullptr;
}

bool stores_fp4(const Checkpoint& checkpoint, std::string_view name) {
  return find_fp4_codes(checkpoint, name) != nullptr;
}

Result<void> check_global(const StoredPlane& /*plane*/, StoredBytes stored) {
  float value = 0;
  std::memcpy(&value, stored[0].data(), sizeof value);
  if (std::isfinite(value) && value > 0) return {};
  return Error{ErrorKind::invalid, fmt::format("the scale for all is {}; it must be above 0 and finite", value)};
}

/// Refuses alternative tensors if more than one exists: their values are ambiguous.
Result<void> check_single(const Checkpoint& checkpoint, std::string_view module,
                          std::initializer_list<std::string_view> parts) {
  const TensorEntry* first = nullptr;
  for (const std::string_view part : parts) {
    const auto found = find_tensor(checkpoint, std::string(module) + std::string(part));
    if (!found) continue;
    if (first != nullptr) {
      return Error{ErrorKind::invalid, fmt::format("{} and {} are both there; the values are ambiguous",
                                                   place_of(checkpoint, *first), (*found)->name)};
    }
    first = *found;
  }
  return {};
}

/// Adds NVFP4's scale for the whole matrix.
Result<void> add_global(const Checkpoint& checkpoint, std::string_view module, StoredMatrix& matrix) {
  TRY(check_single(checkpoint, module, {"weight_scale_2", "weight_global_scale"}));
  const auto times = find_tensor(checkpoint, std::string(module) + "weight_scale_2");
  const auto over = find_tensor(checkpoint, std::string(module) + "weight_global_scale");
  if (!times && !over) {
    return Error{ErrorKind::not_found,
                 fmt::format("{}weight_scale is F8_E4M3, but neither weight_scale_2 nor weight_global_scale is there, "
                             "one of which NVFP4 needs; fetch the file that holds it",
                             module)};
  }
  const TensorEntry& global = times ? **times : **over;
  const bool is_one = global.shape.empty() || global.shape == std::vector<uint64_t>{1};
  if (global.dtype != Dtype::f32 || !is_one) {
    return Error{ErrorKind::invalid, fmt::format("{} is {} {}; it must be one F32", place_of(checkpoint, global),
                                                 to_string(global.dtype), shown_shape(global.shape))};
  }
  matrix.form.global = times ? GlobalScale::times : GlobalScale::over;
  StoredPlane& plane = matrix.planes[kGlobal];
  plane = plane_of(global, matrix.form, kGlobal);
  plane.check = check_global;
  return {};
}

Result<StoredMatrix> find_fp4(const Checkpoint& checkpoint, const MatrixRequest& request) {
  const TensorEntry& codes = *find_fp4_codes(checkpoint, request.name);
  if (codes.shape != std::vector<uint64_t>{request.out, ceil_div(request.in, 2)}) {
    return Error{ErrorKind::invalid,
                 fmt::format("{} has shape {} where config.json asks for {} x {} codes of 4 bits",
                             place_of(checkpoint, codes), shown_shape(codes.shape), request.out, request.in)};
  }
  const std::string module = module_of(request.name);
  TRY(check_single(checkpoint, module, {"weight", "weight_packed"}));
  TRY(check_single(checkpoint, module, {"weight_scale", "scale"}));
  TRY(check_scales(checkpoint, codes));
  const TensorEntry& scales = *checkpoint.find_scale(codes.name);
  const bool is_nv = scales.dtype == Dtype::f8_e4m3;
  if (!is_nv && scales.dtype != Dtype::u8 && scales.dtype != Dtype::f8_e8m0) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; scales of FP4 can be F8_E4M3, F8_E8M0 or U8",
                                                     place_of(checkpoint, scales), to_string(scales.dtype))};
  }
  if (request.stored.bits.value_or(4) != 4) {
    return Error{ErrorKind::invalid, fmt::format("{} holds codes of 4 bits where config.json says {}",
                                                 place_of(checkpoint, codes), *request.stored.bits)};
  }
  StoredMatrix matrix{.form = {.coding = Coding::e2m1, .out = request.out, .in = request.in}, .planes = {}};
  TRY(add_group_scales(checkpoint, scales, request.stored, is_nv ? kNvGroup : kMxGroup, matrix));
  if (is_nv) {
    TRY(add_global(checkpoint, module, matrix));
  } else {  // MXFP4 has no scale for the whole matrix
    const std::string_view scale_part = std::string_view(scales.name).substr(scales.name.rfind('.') + 1);
    TRY(check_single(checkpoint, module, {scale_part, "weight_scale_2", "weight_global_scale"}));
  }
  matrix.planes[kCodes] = plane_of(codes, matrix.form, kCodes);
  // The planes of scales were made before the form was complete.
  for (StoredPlane& plane : matrix.planes)
    plane.form = matrix.form;
  return matrix;
}

Result<MatrixShape> fp4_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& /*stored*/) {
  return shape_of_codes(checkpoint, *find_fp4_codes(checkpoint, name), 2);
}

}  // namespace

WeightFormat fp4_format() {
  return {.description = "FP4 (MXFP4, NVFP4)",
          .suffixes = kFp4Suffixes,
          .stores = stores_fp4,
          .find = find_fp4,
          .scaled = kFp4Scaled,
          .shape = fp4_shape};
}

}  // namespace dspack::format
