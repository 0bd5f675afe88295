// Finds tensors by name, with errors for tensors that are missing or have another shape.
// Threads: thread-safe (pure functions). Lifetime: results borrow the catalogue. Errors: not_found, invalid (shape);
// each names file and tensor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/checkpoint.h"

namespace dspack::format {

/// The error for a missing tensor: the checkpoint is incomplete, or was packed as a part of a model.
[[nodiscard]] Error missing_tensor(const Checkpoint& checkpoint, std::string_view name);

/// The tensor `name`, or that of a language model within another model (kWrapperPrefix). Errors: not_found, with the
/// remedy.
[[nodiscard]] Result<const TensorEntry*> find_tensor(const Checkpoint& checkpoint, std::string_view name);
/// The tensor `name`, checked to have the given shape.
[[nodiscard]] Result<const TensorEntry*> find_tensor(const Checkpoint& checkpoint, std::string_view name,
                                                     const std::vector<uint64_t>& shape);

/// "file: tensor name", for error texts.
[[nodiscard]] std::string place_of(const Checkpoint& checkpoint, const TensorEntry& tensor);

/// "[3, 4]", for error texts.
[[nodiscard]] std::string shown_shape(const std::vector<uint64_t>& shape);

}  // namespace dspack::format
