#include "format/weights/weight_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/base/size.h"

namespace dspack::format {

namespace {

std::string known_formats() {
  std::string text;
  for (const WeightFormat& format : weight_formats())
    text += (text.empty() ? "" : ", ") + std::string(format.description);
  return text;
}

// The error for a matrix that no format stores.
Error not_stored(const Checkpoint& checkpoint, std::string_view name) {
  for (const std::string_view part : {"weight", "weight_packed"}) {
    const auto tensor = find_tensor(checkpoint, module_of(name) + std::string(part));
    if (!tensor) continue;
    return {ErrorKind::unsupported, fmt::format("{} is stored as {}; {} can be run", place_of(checkpoint, **tensor),
                                                to_string((*tensor)->dtype), known_formats())};
  }
  return missing_tensor(checkpoint, name);
}

template <class T>
T load_as(std::span<const std::byte> stored, size_t index) {
  T value;
  std::memcpy(&value, stored.data() + index * sizeof(T), sizeof(T));
  return value;
}

float widened(Dtype dtype, std::span<const std::byte> stored, size_t index) {
  if (dtype == Dtype::bf16) return bf16_to_f32(load_as<uint16_t>(stored, index));
  if (dtype == Dtype::f16) return f16_to_f32(load_as<uint16_t>(stored, index));
  // Some write E8M0 as U8.
  if (dtype == Dtype::f8_e8m0 || dtype == Dtype::u8) return f8_e8m0_to_f32(load_as<uint8_t>(stored, index));
  return load_as<float>(stored, index);
}

Result<void> widen(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  widen_to_f32(plane.elements().dtype, stored[0], {reinterpret_cast<float*>(to.data()), to.size() / sizeof(float)});
  return {};
}

std::optional<ScaleCoding> scale_coding(Dtype dtype) {
  return dtype == Dtype::u8 ? ScaleCoding::f8_e8m0 : scale_coding_of(dtype);
}

// Infinity and NaN have all exponent bits set (in E4M3 and E8M0: NaN, all bits but a sign).
bool is_finite(ScaleCoding coding, std::span<const std::byte> stored, size_t index) {
  switch (coding) {
    case ScaleCoding::f32: return std::isfinite(load_as<float>(stored, index));
    case ScaleCoding::bf16: return (load_as<uint16_t>(stored, index) & 0x7f80) != 0x7f80;
    case ScaleCoding::f16: return (load_as<uint16_t>(stored, index) & 0x7c00) != 0x7c00;
    case ScaleCoding::f8_e4m3: return (load_as<uint8_t>(stored, index) & 0x7f) != 0x7f;
    case ScaleCoding::f8_e8m0: return load_as<uint8_t>(stored, index) != 0xff;
  }
  return false;
}

Result<void> check_finite(const StoredPlane& plane, StoredBytes stored) {
  const ScaleCoding coding = *scale_coding(plane.elements().dtype);
  const uint64_t count = stored[0].size() / scale_bytes(coding);
  bool all = true;
  for (uint64_t i = 0; i < count; ++i)
    all = is_finite(coding, stored[0], i) && all;
  if (all) return {};
  uint64_t first = 0;
  while (is_finite(coding, stored[0], first))
    ++first;
  return Error{ErrorKind::invalid, fmt::format("value {} is infinite or not a number", first)};
}

// The columns per scale if a row has `count` scales; 0 if several powers of two fit or none does.
uint32_t group_length(uint32_t in, uint64_t count) {
  if (count == 1) return in;
  uint32_t found = 0;
  for (uint64_t group = kPackedRun; group < in; group *= 2) {
    if (ceil_div(in, group) != count) continue;
    if (found != 0) return 0;
    found = static_cast<uint32_t>(group);
  }
  return found;
}

}  // namespace

std::span<const WeightFormat> weight_formats() {
  // The first that stores a matrix reads it. bitsandbytes is first, since its extra tensors matter more than a weight's
  // type.
  static const std::array formats = {bitsandbytes_four_bit_format(),
                                     bitsandbytes_int8_format(),
                                     plain_format(),
                                     fp8_format(),
                                     fp4_format(),
                                     packed_format(),
                                     int8_format(),
                                     awq_format(),
                                     gptq_format()};
  return formats;
}

const WeightFormat* storing_format(const Checkpoint& checkpoint, std::string_view name) {
  const auto formats = weight_formats();
  const auto found =
      std::ranges::find_if(formats, [&](const WeightFormat& format) { return format.stores(checkpoint, name); });
  return found == formats.end() ? nullptr : &*found;
}

std::string matrix_of_codes(std::string_view tensor) {
  const std::string module = module_of(tensor);
  const std::string_view part = tensor.substr(module.size());
  const bool is_codes = std::ranges::any_of(weight_formats(), [&](const auto& format) { return format.codes == part; });
  return is_codes ? module + "weight" : std::string();
}

Result<void> StoredPlane::finish(const Checkpoint& checkpoint, StoredBytes stored, std::span<std::byte> to) const {
  DSPACK_CHECK(to.size() == bytes && stored.size() == tensors.size(), "a plane of another size");
  const auto placed = [&](Result<void> result) -> Result<void> {
    return result ? std::move(result) : result.error().in(place_of(checkpoint, elements()));
  };
  if (check != nullptr) TRY(placed(check(*this, stored)));
  if (make != nullptr) return placed(make(*this, stored, to));
  if (to.data() != stored[0].data()) std::memcpy(to.data(), stored[0].data(), stored[0].size());
  return {};
}

Result<StoredMatrix> find_matrix(const Checkpoint& checkpoint, std::string_view name, uint32_t out, uint32_t in,
                                 const Quantization& stored) {
  const WeightFormat* format = storing_format(checkpoint, name);
  if (format == nullptr) return not_stored(checkpoint, name);
  return format->find(checkpoint, {.name = name, .out = out, .in = in, .stored = stored});
}

Result<void> check_scales(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  for (const WeightFormat& format : weight_formats()) {
    for (const ScaledCodes& codes : format.scaled) {
      if (codes.dtype != tensor.dtype || !tensor.name.ends_with(codes.ending)) continue;
      if (checkpoint.find_scale(tensor.name) != nullptr) return {};
      // Codes of the same type may belong to a format without such scales.
      const auto* storing = storing_format(checkpoint, module_of(tensor.name) + "weight");
      if (storing != nullptr && storing->scaled.empty()) return {};
      return Error{ErrorKind::not_found,
                   fmt::format("{} is {} but its scale {}{} is missing; fetch the file that holds it",
                               place_of(checkpoint, tensor), codes.name, module_of(tensor.name), codes.scale)};
    }
  }
  return {};
}

Result<StoredMatrix> find_codes(const Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(const auto* tensor, find_tensor(checkpoint, request.name, {request.out, request.in}));
  const auto coding = coding_of(tensor->dtype);
  DSPACK_CHECK(coding.has_value(), "a format without a coding");
  StoredMatrix matrix{.form = {.coding = *coding, .out = request.out, .in = request.in}, .planes = {}};
  matrix.planes[kCodes] = plane_of(*tensor, matrix.form, kCodes);
  return matrix;
}

Result<MatrixShape> shape_of_codes(const Checkpoint& checkpoint, const TensorEntry& codes, uint64_t per_element,
                                   bool is_turned) {
  constexpr uint64_t kMax = (1ULL << 31) - 1;
  const auto size_of = [&](size_t side) { return codes.shape.size() == 2 ? codes.shape[side] : 0; };
  const uint64_t out = size_of(is_turned ? 1 : 0);
  const uint64_t in = size_of(is_turned ? 0 : 1);
  if (out >= 1 && out <= kMax && in >= 1 && in <= kMax / per_element)
    return MatrixShape{.out = static_cast<uint32_t>(out), .in = static_cast<uint32_t>(in * per_element)};
  return Error{ErrorKind::invalid, fmt::format("{} has shape {}, which is none of a matrix of codes",
                                               place_of(checkpoint, codes), shown_shape(codes.shape))};
}

std::string module_of(std::string_view name) {
  return std::string(name.substr(0, name.rfind('.') + 1));
}

StoredPlane plane_of(const TensorEntry& tensor, const WeightForm& form, size_t plane) {
  const PlaneSize size = plane_size(form, plane);
  return {.tensors = {&tensor}, .bytes = size.bytes, .alignment = size.alignment, .form = form};
}

StoredPlane widened_plane(const TensorEntry& tensor, uint64_t values) {
  StoredPlane plane{.tensors = {&tensor}, .bytes = values * sizeof(float), .alignment = alignof(float), .form = {}};
  if (tensor.dtype != Dtype::f32) plane.make = widen;
  return plane;
}

Result<uint32_t> group_of(const Checkpoint& checkpoint, const TensorEntry& scales, uint64_t count,
                          const Quantization& stored, const WeightForm& form, std::optional<uint32_t> usual) {
  const auto said = stored.group ? stored.group : usual;
  const uint32_t length = said ? std::min(*said, form.in) : group_length(form.in, count);
  if (length == 0)
    return misfit(checkpoint, scales, form, "; give group_size in the quantization_config of config.json");
  if (ceil_div(form.in, length) != count) {
    const std::string_view by = stored.group ? " (group_size in config.json)" : "";
    return misfit(checkpoint, scales, form, fmt::format(" in groups of {}{}", length, by));
  }
  if (length % kPackedRun != 0 && length < form.in) {
    return Error{ErrorKind::unsupported, fmt::format("{}: groups of {} columns; multiples of {} can be run",
                                                     place_of(checkpoint, scales), length, kPackedRun)};
  }
  return length;
}

StoredPlane finite_values(StoredPlane plane) {
  plane.check = check_finite;
  return plane;
}

Result<void> add_group_scales(const Checkpoint& checkpoint, const TensorEntry& scales, const Quantization& stored,
                              std::optional<uint32_t> usual, StoredMatrix& matrix) {
  WeightForm& form = matrix.form;
  const bool is_grid = scales.shape.size() == 2 && scales.shape[0] == form.out && scales.shape[1] > 0;
  if (!is_grid) return misfit(checkpoint, scales, form, ", a row of scales each row");
  TRY_ASSIGN(const uint32_t length, group_of(checkpoint, scales, scales.shape[1], stored, form, usual));
  const auto coding = scale_coding(scales.dtype);
  // Codes of a byte or more have FP32 scales in memory, which cost little in comparison.
  const bool is_kept = is_packed(form.coding);
  const bool is_wide = coding && scale_bytes(*coding) > 1;
  if (!coding || (!is_kept && !is_wide)) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; scales can be F32, BF16, F16 or 8-bit floats",
                                                     place_of(checkpoint, scales), to_string(scales.dtype))};
  }
  form.block_out = 1;
  form.block_in = length;
  if (is_kept) form.scale = *coding;
  const uint64_t values = plane_size(form, kScales).bytes / sizeof(float);
  matrix.planes[kScales] = finite_values(is_kept ? plane_of(scales, form, kScales) : widened_plane(scales, values));
  return {};
}

Result<void> add_scales(const Checkpoint& checkpoint, const TensorEntry& scales, const BlockSize& block,
                        StoredMatrix& matrix) {
  const Dtype dtype = scales.dtype;
  const bool is_of_mxfp8 = dtype == Dtype::u8 && matrix.form.coding == Coding::f8_e4m3;
  if (dtype != Dtype::f32 && dtype != Dtype::bf16 && dtype != Dtype::f16 && dtype != Dtype::f8_e8m0 && !is_of_mxfp8) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; scales can be F32, BF16, F16 or F8_E8M0",
                                                     place_of(checkpoint, scales), to_string(dtype))};
  }
  matrix.form.block_out = block.out;
  matrix.form.block_in = block.in;
  matrix.planes[kScales] = widened_plane(scales, plane_size(matrix.form, kScales).bytes / sizeof(float));
  return {};
}

Error misfit(const Checkpoint& checkpoint, const TensorEntry& scales, const WeightForm& form, std::string_view reason) {
  return {ErrorKind::invalid,
          fmt::format("{}: scales of shape {} do not fit a weight [{}, {}]{}", place_of(checkpoint, scales),
                      shown_shape(scales.shape), form.out, form.in, reason)};
}

void widen_to_f32(Dtype dtype, std::span<const std::byte> stored, std::span<float> values) {
  DSPACK_CHECK(stored.size() == bytes_of(dtype, values.size()), "stored bytes and values differ in number");
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = widened(dtype, stored, i);
}

}  // namespace dspack::format
