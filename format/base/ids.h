// Strong types for numbers that must not be swapped.
// Threads: plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace dspack {

/// Largest layer or expert number that is accepted; released models stay below 1,000.
inline constexpr uint32_t kMaxId = 0xffff;

/// Index of a decoder layer as the checkpoint counts them (the MTP module is num_hidden_layers).
struct LayerId {
  uint32_t value = 0;
  constexpr explicit LayerId(uint32_t v) : value(v) {}
  constexpr LayerId() = default;
  auto operator<=>(const LayerId&) const = default;
};

/// Index of a routed expert within its layer.
struct ExpertId {
  uint32_t value = 0;
  constexpr explicit ExpertId(uint32_t v) : value(v) {}
  constexpr ExpertId() = default;
  auto operator<=>(const ExpertId&) const = default;
};

/// One routed expert of the model.
struct ExpertKey {
  LayerId layer;
  ExpertId expert;
  auto operator<=>(const ExpertKey&) const = default;
};

/// Half-open range of bytes [begin, end) of some file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  [[nodiscard]] constexpr uint64_t size() const { return end - begin; }
  auto operator<=>(const ByteRange&) const = default;
};

}  // namespace dspack
