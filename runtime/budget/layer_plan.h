// Which always-needed layers stay in a memory that may be too small for all of them; the others are loaded in every
// pass, through buffers that take turns.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "format/base/ids.h"
#include "format/json.h"

namespace dspack::runtime {

struct LayerNeed {
  LayerId id;
  uint64_t bytes = 0;
  uint32_t uses = 1;  // in one pass
};

struct LayerPlan {
  uint64_t resident_bytes = 0;    // sum over the layers that stay
  std::vector<LayerId> streamed;  // the others, ascending
  uint64_t streamed_bytes = 0;    // sum over these, for each use in a pass
  uint32_t buffers = 0;           // 2: the next layer is loaded while one computes; 1: it is not; 0: none streams
  uint64_t buffer_bytes = 0;      // sum over all buffers
  [[nodiscard]] uint64_t total_bytes() const;
};

[[nodiscard]] LayerPlan keep_all(std::span<const LayerNeed> layers);

/// Tries plans in which more and more layers stream, with two buffers, or if none fits and `least_buffers` is 1, with
/// one; returns the first that fits. The layers that a pass uses least stream first, then the smallest, so that few
/// bytes more than necessary stream, then those at the end of the pass. nullopt: nothing fits.
[[nodiscard]] std::optional<LayerPlan> stream_layers(std::span<const LayerNeed> layers, uint32_t least_buffers,
                                                     const std::function<bool(const LayerPlan&)>& fits);

/// The ids of the layers that stream.
[[nodiscard]] format::Json ids_of(const LayerPlan& plan);

/// The elements of `layers` whose ids are in `ids`, which is ascending.
[[nodiscard]] std::vector<LayerNeed> among(std::span<const LayerNeed> layers, std::span<const LayerId> ids);

}  // namespace dspack::runtime
