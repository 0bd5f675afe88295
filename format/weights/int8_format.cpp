#include <fmt/format.h>

#include "format/weights/weight_format.h"

namespace dspack::format {

namespace {

// Symmetric, a scale for each row, as compressed-tensors writes "int-quantized". A zero point is a tensor that nobody
// knows, and so is refused.
constexpr std::array<std::string_view, 2> kInt8Suffixes = {"weight", "weight_scale"};

bool stores_int8(const Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  return tensor && (*tensor)->dtype == Dtype::i8;
}

Result<StoredMatrix> find_int8(const Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(StoredMatrix matrix, find_codes(checkpoint, request));
  const TensorEntry& weight = matrix.planes[kCodes].elements();
  TRY(check_scales(checkpoint, weight));
  if (request.stored.bits.value_or(8) != 8 || !request.stored.symmetric.value_or(true)) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("{} is I8 where config.json says {} bits, \"symmetric\": {}; only 8 bits without zero points "
                    "can be run",
                    place_of(checkpoint, weight), request.stored.bits.value_or(8),
                    request.stored.symmetric.value_or(true))};
  }
  const TensorEntry& scales = *checkpoint.find_scale(weight.name);
  const std::vector<uint64_t>& shape = scales.shape;
  const bool is_column = shape.size() == 1 || (shape.size() == 2 && shape[1] == 1);
  if (!is_column || shape[0] != request.out) return misfit(checkpoint, scales, matrix.form, ", one a row");
  TRY(add_scales(checkpoint, scales, {.out = 1, .in = request.in}, matrix));
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
