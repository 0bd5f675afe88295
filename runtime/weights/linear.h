// A linear layer's weight, which multiplies itself, and tensors by name. No code outside this folder asks how a weight
// is stored (weight_format.h). Threads: thread-compatible (immutable once loaded). Lifetime: borrows the device buffer
// that holds its bytes. Errors of finding: not_found, invalid (shape); each names file and tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "kernels/ops.h"

namespace dspack::runtime {

class Linear {
 public:
  Linear() = default;
  explicit Linear(const kernels::Weight& weight) : weight_(weight) {}

  [[nodiscard]] bool empty() const { return weight_.planes[kernels::kCodes].empty(); }
  [[nodiscard]] const kernels::Weight& weight() const { return weight_; }
  /// y[r] = weight . x[r]. x [rows, in], y [rows, out].
  void apply(kernels::Queue& queue, const kernels::Rows& x, const kernels::Rows& y) const {
    queue.linear(weight_, x, y);
  }

 private:
  kernels::Weight weight_;
};

/// Why a tensor is not there: the checkpoint is incomplete, or was packed as a part of a model.
[[nodiscard]] Error missing_tensor(const format::Checkpoint& checkpoint, std::string_view name);

/// The tensor `name`, or that of a language model within another model (format::kWrapperPrefix). Errors: not_found,
/// with the remedy.
[[nodiscard]] Result<const format::TensorEntry*> find_tensor(const format::Checkpoint& checkpoint,
                                                             std::string_view name);
/// The tensor `name`, checked to have the given shape.
[[nodiscard]] Result<const format::TensorEntry*> find_tensor(const format::Checkpoint& checkpoint,
                                                             std::string_view name, const std::vector<uint64_t>& shape);

/// "file: tensor name", for error texts.
[[nodiscard]] std::string place_of(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor);

}  // namespace dspack::runtime
