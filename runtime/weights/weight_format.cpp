#include "runtime/weights/weight_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "format/base/checked.h"

namespace dspack::runtime {

namespace {

// What stands in place of "weight" where integers are packed: GPTQ and AWQ, compressed-tensors.
constexpr std::array<std::string_view, 2> kPackedParts = {"qweight", "weight_packed"};

std::string known_formats() {
  std::string text;
  for (const WeightFormat& format : weight_formats())
    text += (text.empty() ? "" : ", ") + std::string(format.description);
  return text;
}

// Why no format has taken it.
Error not_stored(const format::Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  if (tensor) {
    return {ErrorKind::unsupported, fmt::format("{} is stored as {}; {} can be run", place_of(checkpoint, **tensor),
                                                to_string((*tensor)->dtype), known_formats())};
  }
  const std::string module(name.substr(0, name.rfind('.') + 1));
  for (const std::string_view part : kPackedParts) {
    if (const auto packed = find_tensor(checkpoint, module + std::string(part)); packed) {
      return {ErrorKind::unsupported,
              fmt::format("{} holds packed integers; {} can be run", place_of(checkpoint, **packed), known_formats())};
    }
  }
  return tensor.error();
}

StoredPlane plane_of(const format::TensorEntry& tensor, const kernels::WeightForm& form, size_t plane) {
  const kernels::PlaneSize size = kernels::plane_size(form, plane);
  return {.tensor = &tensor, .widen = false, .bytes = size.bytes, .alignment = size.alignment};
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
  if (dtype == Dtype::f8_e8m0) return f8_e8m0_to_f32(load_as<uint8_t>(stored, index));
  return load_as<float>(stored, index);
}

}  // namespace

std::span<const WeightFormat> weight_formats() {
  static const std::array formats = {plain_format(), fp8_format(), int8_format()};
  return formats;
}

bool StoredPlane::is_usable_at(uint64_t offset) const {
  return offset % alignment == 0 && (!widen || tensor->dtype == Dtype::f32);
}

void StoredPlane::convert(std::span<const std::byte> stored, std::span<std::byte> plane) const {
  DSPACK_CHECK(plane.size() == bytes, "a plane of another size");
  if (!widen) {
    std::memcpy(plane.data(), stored.data(), stored.size());
    return;
  }
  widen_to_f32(tensor->dtype, stored, {reinterpret_cast<float*>(plane.data()), plane.size() / sizeof(float)});
}

Result<StoredMatrix> find_matrix(const format::Checkpoint& checkpoint, std::string_view name, uint32_t out, uint32_t in,
                                 const std::optional<BlockSize>& block) {
  for (const WeightFormat& format : weight_formats()) {
    if (format.stores(checkpoint, name)) {
      return format.find(checkpoint, {.name = name, .out = out, .in = in, .block = block});
    }
  }
  return not_stored(checkpoint, name);
}

Result<void> check_scales(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor) {
  if (!tensor.name.ends_with(".weight") || find_scale(checkpoint, tensor) != nullptr) return {};
  for (const WeightFormat& format : weight_formats()) {
    if (!format.scaled || format.scaled->dtype != tensor.dtype) continue;
    return Error{ErrorKind::not_found,
                 fmt::format("{} is {} but its scale {}{} is missing; fetch the file that holds it",
                             place_of(checkpoint, tensor), format.scaled->name, tensor.name, format.scaled->scale)};
  }
  return {};
}

Result<StoredMatrix> find_codes(const format::Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(const auto* tensor, find_tensor(checkpoint, request.name, {request.out, request.in}));
  const auto coding = kernels::coding_of(tensor->dtype);
  DSPACK_CHECK(coding.has_value(), "a format without a coding");
  StoredMatrix matrix{.form = {.coding = *coding, .out = request.out, .in = request.in}, .planes = {}};
  matrix.planes[kernels::kCodes] = plane_of(*tensor, matrix.form, kernels::kCodes);
  return matrix;
}

const format::TensorEntry* find_scale(const format::Checkpoint& checkpoint, const format::TensorEntry& weight) {
  for (const std::string& candidate : format::scale_names(weight.name)) {
    if (const auto* found = checkpoint.find(candidate); found != nullptr) return found;
  }
  return nullptr;
}

Result<void> add_scales(const format::Checkpoint& checkpoint, const format::TensorEntry& scales, const BlockSize& block,
                        StoredMatrix& matrix) {
  const Dtype dtype = scales.dtype;
  if (dtype != Dtype::f32 && dtype != Dtype::bf16 && dtype != Dtype::f16 && dtype != Dtype::f8_e8m0) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; scales can be F32, BF16, F16 or F8_E8M0",
                                                     place_of(checkpoint, scales), to_string(dtype))};
  }
  matrix.form.block_out = block.out;
  matrix.form.block_in = block.in;
  matrix.planes[kernels::kScales] = plane_of(scales, matrix.form, kernels::kScales);
  matrix.planes[kernels::kScales].widen = true;
  return {};
}

Error misfit(const format::Checkpoint& checkpoint, const format::TensorEntry& scales, const kernels::WeightForm& form,
             std::string_view reason) {
  return {ErrorKind::invalid,
          fmt::format("{}: scales of shape {} do not fit a weight [{}, {}]{}", place_of(checkpoint, scales),
                      shown_shape(scales.shape), form.out, form.in, reason)};
}

std::string shown_shape(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void widen_to_f32(Dtype dtype, std::span<const std::byte> stored, std::span<float> values) {
  DSPACK_CHECK(stored.size() == bytes_of(dtype, values.size()), "stored bytes and values differ in number");
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = widened(dtype, stored, i);
}

}  // namespace dspack::runtime
