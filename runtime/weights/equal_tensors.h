// Whether two stored tensors are the same, so that one of them need not be kept in memory.
// Threads: single-thread. Errors: those of reading.
#pragma once

#include "runtime/access/checkpoint_access.h"

namespace dspack::runtime {

/// Element type, shape and bytes are equal. Digests decide where both are known (packed repositories), else the bytes
/// are read and compared, up to the first difference; of a distant place only three pieces of each, since drafts, for
/// which it is asked, are verified whatever they are made with. A type that needs scales counts as different, since
/// they are elsewhere.
[[nodiscard]] Result<bool> are_equal(CheckpointAccess& access, const format::TensorEntry& a,
                                     const format::TensorEntry& b, const std::stop_token& stop);

}  // namespace dspack::runtime
