// Tensors of a source that are probably equal, found by reading a few samples of each: whether they are is known when
// all their bytes have streamed by.
// Threads: one call; up to `jobs` requests at a time. Errors: as the repository.
#pragma once

#include <stop_token>
#include <vector>

#include "reshard/plan/selection.h"

namespace dspack::reshard {

/// Groups of two or more catalogue indices, each ascending, by their first. Routed experts are not looked at: equal
/// ones occur only where whole layers were repeated, which a layer map says without copies; nor are tensors below 64
/// KiB.
[[nodiscard]] Result<std::vector<std::vector<uint32_t>>> alike_tensors(const Selection& selection,
                                                                       const format::Checkpoint& source,
                                                                       format::Repository& repository, unsigned jobs,
                                                                       const std::stop_token& stop);

}  // namespace dspack::reshard
