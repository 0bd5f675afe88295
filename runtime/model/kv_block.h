// Consecutive positions of a sequence in the host's memory: their token ids, and their rows of the KV cache in a given
// shape. A sequence that holds what comes before goes on from them as if its own passes had computed them
// (Sequence::append).
// Threads: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "format/dtype.h"

namespace dspack::runtime {

/// One kind of row that a layer's attention keeps of every position.
struct CachePlane {
  std::string_view name;              // a literal: "latent"
  uint32_t width = 0;                 // values in a row
  Dtype dtype = Dtype::f32;           // as which they are stored
  uint64_t row_bytes = 0;             // with scales and padding
  std::vector<uint32_t> layers = {};  // of the pass that have it, ascending; empty: all
  /// How many of `all` layers have it.
  [[nodiscard]] uint64_t layers_of(uint64_t all) const { return layers.empty() ? all : layers.size(); }
  bool operator==(const CachePlane&) const = default;
};

/// What a position takes, in every layer.
struct KvShape {
  uint32_t layers = 0;
  std::vector<CachePlane> planes;

  [[nodiscard]] uint64_t position_bytes() const {
    uint64_t bytes = 0;
    for (const CachePlane& plane : planes)
      bytes += plane.layers_of(layers) * plane.row_bytes;
    return bytes;
  }
  bool operator==(const KvShape&) const = default;
};

struct KvBlock {
  uint32_t first = 0;            // position
  std::vector<uint32_t> tokens;  // [positions]
  std::vector<std::byte> rows;   // [planes][their layers][positions] rows, of a KvShape

  /// The position behind it.
  [[nodiscard]] uint32_t end() const { return first + static_cast<uint32_t>(tokens.size()); }
};

}  // namespace dspack::runtime
