// Consecutive positions of a sequence in the host's memory: their token ids, and their rows of the KV cache in a given
// shape. A sequence that holds what comes before goes on from them as if its own passes had computed them
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

/// Positions [first, end) of a sequence. Where a cache has rings, only some of them have what a sequence needs to go on
/// after them.
struct KvExtent {
  uint32_t first = 0;
  uint32_t end = 0;
  bool goes_on = true;
};

/// One kind of row that a layer's attention keeps of every position.
struct CachePlane {
  std::string_view name;              // a literal: "latent"
  uint32_t width = 0;                 // values in a row
  Dtype dtype = Dtype::f32;           // as which they are stored
  uint64_t row_bytes = 0;             // with scales and padding
  std::vector<uint32_t> layers = {};  // of the pass that have it, ascending; empty: all
  uint32_t every = 1;                 // positions that a row stands for; it is there when all of them are
  /// 0: all rows stay. Else those of the last positions alone, in a ring: of position p at row p % ring.
  uint32_t ring = 0;
  /// Of a ring: what goes on after `length` positions needs the rows from (length / block * block - back) on.
  uint32_t block = 1;
  uint32_t back = 0;
  /// Positions by which a sequence can be cut back whatever its length: a ring has room for so many more than are
  /// needed.
  static constexpr uint32_t kRewind = 128;

  /// Rows of a cache for so many positions.
  [[nodiscard]] uint64_t rows_for(uint64_t positions) const { return ring == 0 ? positions / every : ring; }
  /// The first position whose row is needed after `length` positions.
  [[nodiscard]] uint32_t needed_from(uint32_t length) const {
    const uint32_t begun = length / block * block;
    return ring == 0 || begun < back ? 0 : begun - back;
  }
  /// How many of `all` layers have it.
  [[nodiscard]] uint64_t layers_of(uint64_t all) const { return layers.empty() ? all : layers.size(); }
  /// Rows of a block.
  [[nodiscard]] uint64_t block_rows(const KvExtent& extent) const {
    if (ring == 0) return extent.end / every - extent.first / every;
    return extent.goes_on ? extent.end - needed_from(extent.end) : 0;
  }
  bool operator==(const CachePlane&) const = default;
};

/// What positions take, in every layer.
struct KvShape {
  uint32_t layers = 0;
  std::vector<CachePlane> planes;

  /// Whether it keeps more than rows that stay: what goes on after a position then needs rows that are gone later.
  [[nodiscard]] bool has_rings() const {
    return std::ranges::any_of(planes, [](const CachePlane& plane) { return plane.ring != 0; });
  }
  /// Of a block's rows.
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
  std::vector<std::byte> rows;   // [planes][their layers][block_rows] rows, of a KvShape
  bool goes_on = true;           // KvExtent

  /// The position behind it.
  [[nodiscard]] uint32_t end() const { return first + static_cast<uint32_t>(tokens.size()); }
  [[nodiscard]] KvExtent extent() const { return {.first = first, .end = end(), .goes_on = goes_on}; }
};

}  // namespace dspack::runtime
