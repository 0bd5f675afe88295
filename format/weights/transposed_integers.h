// Integers with zero points as AutoAWQ and GPTQ store them: transposed, [in, out], several per word. Kernels need rows
// of one output each, so codes are transposed when they are read. Value = (code - zero point) * scale.
// Threads: thread-safe (pure functions). Lifetime: results borrow the catalogue. Errors: not_found (a tensor is
// missing), invalid (shapes do not fit), unsupported (a number of bits that no kernel knows); each names file and
// tensor.
#pragma once

#include "format/weights/weight_format.h"

namespace dspack::format {

/// The dimension of the matrix along which the integers of a `qweight` word run.
enum class PackedAlong : uint8_t { in, out };

struct TransposedLayout {
  PackedAlong along = PackedAlong::in;
  bool interleaved = false;  // AutoAWQ's order of the integers in a word, also in `qzeros`
  uint32_t zero_offset = 0;  // to be added to a stored zero point
};

/// The matrix of a module's `qweight`, `qzeros` and `scales`. Four-bit codes stay four-bit, with zero points and
/// scales; eight-bit codes become BF16, less their zero points, with FP32 scales. If the groups are `ordered`, all of
/// it becomes FP32, since kernels have one scale per group of adjacent columns. `order`: I32 [in], the group of each
/// row of the transposed matrix, or nullptr. `ordered`: whether these groups may differ from the natural ones.
struct TransposedRequest {
  const MatrixRequest& matrix;
  TransposedLayout layout;
  const TensorEntry* order = nullptr;
  bool ordered = false;
};

[[nodiscard]] Result<StoredMatrix> find_transposed(const Checkpoint& checkpoint, const TransposedRequest& request);

}  // namespace dspack::format
