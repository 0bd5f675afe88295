#include <fmt/format.h>

#include "format/weights/weight_format.h"

namespace dspack::format {

namespace {

// Scales are listed so that a plain weight with scales is refused.
constexpr std::array<std::string_view, 4> kPlainSuffixes = {"weight", "weight_scale_inv", "weight_scale", "scale"};

bool stores_plain(const Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  if (!tensor) return false;
  const Dtype dtype = (*tensor)->dtype;
  return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

Result<StoredMatrix> find_plain(const Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(StoredMatrix matrix, find_codes(checkpoint, request));
  const TensorEntry& weight = matrix.planes[kCodes].elements();
  const auto* scale = checkpoint.find_scale(weight.name);
  if (scale == nullptr) return matrix;
  return Error{ErrorKind::invalid, fmt::format("{} is {} but has scales ({}); its values are ambiguous",
                                               place_of(checkpoint, weight), to_string(weight.dtype), scale->name)};
}

}  // namespace

WeightFormat plain_format() {
  return {.description = "BF16, F16, F32",
          .suffixes = kPlainSuffixes,
          .stores = stores_plain,
          .find = find_plain,
          .scaled = {}};
}

}  // namespace dspack::format
