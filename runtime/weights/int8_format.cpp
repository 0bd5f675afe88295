#include "runtime/weights/weight_format.h"

namespace dspack::runtime {

namespace {

// Symmetric, a scale for each row, as compressed-tensors writes "int-quantized". A zero point is a tensor that nobody
// knows, and so is refused.
constexpr std::array<std::string_view, 2> kInt8Suffixes = {"weight", "weight_scale"};

bool stores_int8(const format::Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  return tensor && (*tensor)->dtype == Dtype::i8;
}

Result<StoredMatrix> find_int8(const format::Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(StoredMatrix matrix, find_codes(checkpoint, request));
  const format::TensorEntry& weight = *matrix.planes[kernels::kCodes].tensor;
  TRY(check_scales(checkpoint, weight));
  const format::TensorEntry& scales = *find_scale(checkpoint, weight);
  const std::vector<uint64_t>& shape = scales.shape;
  const bool is_column = shape.size() == 1 || (shape.size() == 2 && shape[1] == 1);
  if (!is_column || shape[0] != request.out) return misfit(checkpoint, scales, matrix.form, ", one a row");
  TRY(add_scales(checkpoint, scales, {.out = 1, .in = request.in}, matrix));
  return matrix;
}

}  // namespace

WeightFormat int8_format() {
  return {.description = "I8",
          .suffixes = kInt8Suffixes,
          .stores = stores_int8,
          .find = find_int8,
          .scaled = ScaledCodes{.dtype = Dtype::i8, .name = "I8", .scale = "_scale"}};
}

}  // namespace dspack::runtime
