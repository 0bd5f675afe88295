// Which always-needed layers stay in a memory that may be too small for all of them; the others are brought in every
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
  uint64_t resident_bytes = 0;    // of those that stay
  std::vector<LayerId> streamed;  // the others, ascending
  uint64_t streamed_bytes = 0;    // of these, as often as they come in a pass
  uint32_t buffers = 0;           // 2: the next layer is brought while one computes; 1: it is not; 0: none streams
  uint64_t buffer_bytes = 0;      // of all buffers
  [[nodiscard]] uint64_t total_bytes() const;
};

[[nodiscard]] LayerPlan keep_all(std::span<const LayerNeed> layers);

/// The first that fits of the plans in which more and more layers stream, with two buffers, or if none does, and
/// `least_buffers` is 1, with one. Those that a pass uses least go first, then the smallest, so that few bytes more
/// than necessary stream, then from the end of the pass. nullopt: nothing fits.
[[nodiscard]] std::optional<LayerPlan> stream_layers(std::span<const LayerNeed> layers, uint32_t least_buffers,
                                                     const std::function<bool(const LayerPlan&)>& fits);

/// Of the layers that stream.
[[nodiscard]] format::Json ids_of(const LayerPlan& plan);

/// Those of `layers` that are in `ids`, which is ascending.
[[nodiscard]] std::vector<LayerNeed> among(std::span<const LayerNeed> layers, std::span<const LayerId> ids);

}  // namespace dspack::runtime
