// The weights that every token needs: what a distant place is asked for first, all at once.
// Threads: thread-safe (a pure function). Errors: none.
#pragma once

#include <vector>

#include "format/checkpoint.h"
#include "format/layer_map.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Of the layers that run (empty map: all), final norm and head, and of the MTP module if it runs; no experts, no
/// embeddings, and nothing that is a copy of another by its digest.
[[nodiscard]] std::vector<format::Extent> always_needed(const format::Checkpoint& checkpoint, const ModelConfig& config,
                                                        const format::LayerMap& layers, bool with_mtp);

}  // namespace dspack::runtime
