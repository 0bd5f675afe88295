// Compares two stored tensors, so that equal ones are kept in memory once.
// Threads: single-thread. Errors: those of reading.
#pragma once

#include "runtime/access/checkpoint_access.h"

namespace dspack::runtime {

/// Whether element type, shape and bytes are equal. Compares the digests if both are known (packed repositories);
/// otherwise reads the bytes and compares up to the first difference. From a distant place it reads only three pieces
/// of each: callers load drafts' weights, and drafts are verified in any case. A type that needs scales counts as
/// different, since its scales are separate tensors.
[[nodiscard]] Result<bool> are_equal(CheckpointAccess& access, const format::TensorEntry& a,
                                     const format::TensorEntry& b, const std::stop_token& stop);

}  // namespace dspack::runtime
