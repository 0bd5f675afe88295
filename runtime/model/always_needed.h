// The weights that every token needs, which are fetched first from a distant place, all together.
// Threads: thread-safe (a pure function). Errors: none.
#pragma once

#include <vector>

#include "format/checkpoint.h"
#include "format/layer_map.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Extents of the layers that run (empty map: all), the final norm and head, and the MTP module if it runs. Without
/// experts, without embeddings unless the head is tied to them, and without a module's head that is, or may be, a copy
/// of the main one.
[[nodiscard]] std::vector<format::Extent> always_needed(const format::Checkpoint& checkpoint, const ModelConfig& config,
                                                        const format::LayerMap& layers, bool with_mtp);

}  // namespace dspack::runtime
