#include <fmt/format.h>

#include <algorithm>

#include "format/weights/weight_format.h"

namespace dspack::format {

namespace {

// Symmetric, a scale per row, as compressed-tensors writes "int-quantized". Quark also writes zero points, all of which
// must be 0.
constexpr std::array<std::string_view, 3> kInt8Suffixes = {"weight", "weight_scale", "weight_zero_point"};

/// Checks the zero points, the second tensor of a plane of scales.
Result<void> check_zeros(const StoredPlane& /*plane*/, StoredBytes stored) {
  const auto odd = std::ranges::find_if(stored[1], [](std::byte value) { return value != std::byte{0}; });
  if (odd == stored[1].end()) return {};
  return Error{ErrorKind::unsupported,
               fmt::format("zero point {} beside it is not 0; only codes without can be run", odd - stored[1].begin())};
}

bool stores_int8(const Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  return tensor && (*tensor)->dtype == Dtype::i8;
}

Result<StoredMatrix> find_int8(const Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(StoredMatrix matrix, find_codes(checkpoint, request));
  const TensorEntry& weight = matrix.planes[kCodes].elements();
  TRY(check_scales(checkpoint, weight));
  // Codes of fewer bits may also be stored as bytes, and need no other treatment.
  if (request.stored.bits.value_or(8) > 8 || !request.stored.symmetric.value_or(true)) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("{} is I8 where config.json says {} bits, \"symmetric\": {}; only codes without zero points "
                    "can be run",
                    place_of(checkpoint, weight), request.stored.bits.value_or(8),
                    request.stored.symmetric.value_or(true))};
  }
  const TensorEntry& scales = *checkpoint.find_scale(weight.name);
  const std::vector<uint64_t>& shape = scales.shape;
  const bool is_column = shape.size() == 1 || (shape.size() == 2 && shape[1] == 1);
  if (!is_column || shape[0] != request.out) return misfit(checkpoint, scales, matrix.form, ", one a row");
  TRY(add_scales(checkpoint, scales, {.out = 1, .in = request.in}, matrix));
  const TensorEntry* zeros = checkpoint.find_matrix(module_of(weight.name) + "weight_zero_point");
  if (zeros == nullptr) return matrix;
  if (zeros->dtype != Dtype::i8 || zeros->range.size() != request.out)
    return misfit(checkpoint, *zeros, matrix.form, ", a zero point in I8 each row");
  matrix.planes[kScales].tensors.push_back(zeros);
  matrix.planes[kScales].check = check_zeros;
  return matrix;
}

Result<MatrixShape> int8_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& /*stored*/) {
  TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, name));
  return shape_of_codes(checkpoint, *codes, 1);
}

constexpr std::array<ScaledCodes, 1> kInt8Scaled = {{
    {.ending = ".weight", .dtype = Dtype::i8, .name = "I8", .scale = "weight_scale"},
}};

}  // namespace

WeightFormat int8_format() {
  return {.description = "I8",
          .suffixes = kInt8Suffixes,
          .stores = stores_int8,
          .find = find_int8,
          .scaled = kInt8Scaled,
          .shape = int8_shape};
}

}  // namespace dspack::format
