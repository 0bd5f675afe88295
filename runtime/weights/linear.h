// A linear layer's weight, typed: it knows how its bytes are stored and multiplies itself. No code outside this folder
// asks for a quantisation; stored_kinds.h lists the ways in which weights are stored. Threads: thread-compatible
// (immutable once loaded). Lifetime: borrows the device buffer that holds its bytes. Errors of finding: not_found (no
// such tensor), invalid (shape or scale does not fit), unsupported (a stored type that no kernel multiplies); each
// names file and tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "kernels/ops.h"
#include "runtime/model/config.h"

namespace dspack::runtime {

class Linear {
 public:
  Linear() = default;
  explicit Linear(const kernels::Weight& weight) : weight_(weight) {}

  [[nodiscard]] bool empty() const { return weight_.data.empty(); }
  [[nodiscard]] const kernels::Weight& weight() const { return weight_; }
  /// y[r] = weight . x[r]. x [rows, in], y [rows, out].
  void apply(kernels::Queue& queue, const kernels::Rows& x, const kernels::Rows& y) const {
    queue.linear(weight_, x, y);
  }

 private:
  kernels::Weight weight_;
};

/// Where a linear layer lies in a checkpoint, checked but not yet read.
struct LinearSource {
  const format::TensorEntry* weight = nullptr;
  const format::TensorEntry* scale = nullptr;  // nullptr: none
  kernels::Weight form;                        // all but the slices

  /// FP32 values that the scale has in memory.
  [[nodiscard]] uint64_t scale_values() const;
};

/// Finds the weight `name` [out, in] and, if it is stored in FP8, its scales. How it is stored is seen from its
/// tensors. `block` is what config.json says; without it the block size follows from the shape of the scales.
[[nodiscard]] Result<LinearSource> find_linear(const format::Checkpoint& checkpoint, std::string_view name,
                                               uint32_t out, uint32_t in, const std::optional<BlockSize>& block);

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
