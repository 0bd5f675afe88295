// Integers with zero points as AutoAWQ and GPTQ store them: transposed, [in, out], several in a word. Kernels want rows
// of one output each, so codes are turned when they are read. Value = (code - zero point) * scale.
// Threads: thread-safe (pure functions). Lifetime: what is found borrows the catalogue. Errors: not_found (a tensor is
// missing), invalid (shapes do not fit), unsupported (a number of bits that no kernel knows); each names file and
// tensor.
#pragma once

#include "format/weights/weight_format.h"

namespace dspack::format {

/// Which side of the matrix the integers of a word of `qweight` are from.
enum class PackedAlong : uint8_t { in, out };

struct TransposedLayout {
  PackedAlong along = PackedAlong::in;
  bool interleaved = false;  // AutoAWQ's order of the integers in a word, also of `qzeros`
  uint32_t zero_offset = 0;  // what a stored zero point lacks
};

/// `qweight`, `qzeros` and `scales` of a module. Codes of four bits stay four bits, with their zero points and scales
/// beside them; of eight, less their zero points, become BF16 with FP32 scales. With an `order` that gives each row of
/// the transposed matrix its group, all of it becomes FP32, for a kernel has one scale a group.
/// `order`: tensor of groups, I32 [in], or nullptr. `ordered`: whether they may differ from the natural ones.
struct TransposedRequest {
  const MatrixRequest& matrix;
  TransposedLayout layout;
  const TensorEntry* order = nullptr;
  bool ordered = false;
};

[[nodiscard]] Result<StoredMatrix> find_transposed(const Checkpoint& checkpoint, const TransposedRequest& request);

}  // namespace dspack::format
