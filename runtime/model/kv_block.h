// Consecutive positions of a sequence in host memory: their token ids, and their rows of the KV cache in a given shape.
// A sequence that holds the positions before them can append them, and continue as if it had computed them
// (Sequence::append).
// Threads: plain values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "format/dtype.h"

namespace dspack::runtime {

/// Positions [first, end) of a sequence. `goes_on`: includes the ring rows that are needed to continue after `end`; if
/// a cache has rings, only some extents have them.
struct KvExtent {
  uint32_t first = 0;
  uint32_t end = 0;
  bool goes_on = true;
};

/// One kind of row that a layer's attention keeps for its positions.
struct CachePlane {
  std::string_view name;              // a literal: "latent"
  uint32_t width = 0;                 // values in a row
  Dtype dtype = Dtype::f32;           // type in which they are stored
  uint64_t row_bytes = 0;             // with scales and padding
  std::vector<uint32_t> layers = {};  // indices in the pass of layers that have it, ascending; empty: all
  uint32_t every = 1;                 // positions per row; a row exists once all of its positions do
  /// 0: all rows are kept. Otherwise a ring of this many rows, for the last positions only: position p's at row p %
  /// ring.
  uint32_t ring = 0;
  /// For a ring: continuing after `length` positions needs the rows from (length / block * block - back) on.
  uint32_t block = 1;
  uint32_t back = 0;
  /// A ring has room for this many more positions than are needed, so a sequence of any length can be cut back by that
  /// many.
  static constexpr uint32_t kRewind = 128;

  /// Rows in a cache with room for `positions` positions.
  [[nodiscard]] uint64_t rows_for(uint64_t positions) const { return ring == 0 ? positions / every : ring; }
  /// The first position whose row is needed after `length` positions.
  [[nodiscard]] uint32_t needed_from(uint32_t length) const {
    const uint32_t begun = length / block * block;
    return ring == 0 || begun < back ? 0 : begun - back;
  }
  /// How many of a cache's `all` layers have this plane.
  [[nodiscard]] uint64_t layers_of(uint64_t all) const { return layers.empty() ? all : layers.size(); }
  /// Rows that a block has of this plane, per layer.
  [[nodiscard]] uint64_t block_rows(const KvExtent& extent) const {
    if (ring == 0) return extent.end / every - extent.first / every;
    return extent.goes_on ? extent.end - needed_from(extent.end) : 0;
  }
  bool operator==(const CachePlane&) const = default;
};

/// The planes of a cache, over all of its layers.
struct KvShape {
  uint32_t layers = 0;
  std::vector<CachePlane> planes;

  /// Whether some plane is a ring: rows that are needed to continue after a position are then overwritten later.
  [[nodiscard]] bool has_rings() const {
    return std::ranges::any_of(planes, [](const CachePlane& plane) { return plane.ring != 0; });
  }
  /// Size of a block's rows.
  [[nodiscard]] uint64_t block_bytes(const KvExtent& extent) const {
    uint64_t bytes = 0;
    for (const CachePlane& plane : planes)
      bytes += plane.layers_of(layers) * plane.row_bytes * plane.block_rows(extent);
    return bytes;
  }
  bool operator==(const KvShape&) const = default;
};

struct KvBlock {
  uint32_t first = 0;            // position
  std::vector<uint32_t> tokens;  // [positions]
  std::vector<std::byte> rows;   // rows [planes][layers of the plane][block_rows], by KvShape
  bool goes_on = true;           // KvExtent

  /// The position after the block.
  [[nodiscard]] uint32_t end() const { return first + static_cast<uint32_t>(tokens.size()); }
  [[nodiscard]] KvExtent extent() const { return {.first = first, .end = end(), .goes_on = goes_on}; }
};

}  // namespace dspack::runtime
