// The KV cache of one sequence: for each layer of the pass and each position one row in every plane that the layer's
// attention declares. It is allocated in full at once, so that a long answer cannot run out of memory half-way. A
// physical layer that a layer map repeats has rows of its own for each time.
// Threads: single-thread. Lifetime: owns its buffer. Errors: budget.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "kernels/ops.h"
#include "runtime/model/kv_block.h"

namespace dspack::runtime {

/// One plane of one layer: rows without gaps.
struct CacheRows {
  kernels::Slice data;
  Dtype dtype = Dtype::f32;
  uint32_t rows = 0;
  uint64_t row_bytes = 0;

  [[nodiscard]] kernels::Slice at_row(uint32_t row) const { return data.at(row * row_bytes); }
  /// Where a position's row begins. Precondition: there is one for each position.
  [[nodiscard]] kernels::Slice at(uint32_t position) const { return at_row(position); }
};

class KvCache {
 public:
  /// Room for `capacity` positions in each plane of each of `layers` layers.
  [[nodiscard]] static Result<KvCache> make(kernels::Device& device, uint32_t layers, uint32_t capacity,
                                            std::vector<CachePlane> planes);
  /// Memory of such a cache; nullopt: beyond 2^64.
  [[nodiscard]] static std::optional<uint64_t> bytes_of(uint64_t layers, uint64_t capacity,
                                                        std::span<const CachePlane> planes);

  [[nodiscard]] uint32_t capacity() const { return capacity_; }
  /// Positions that hold a token.
  [[nodiscard]] uint32_t length() const { return length_; }
  [[nodiscard]] uint64_t size_bytes() const { return buffer_->size_bytes(); }
  [[nodiscard]] kernels::Buffer& buffer() const { return *buffer_; }

  /// Rows of a plane, which that layer must have, of the layer that comes `layer`-th in the pass.
  [[nodiscard]] CacheRows rows(uint32_t layer, std::string_view plane) const;

  [[nodiscard]] KvShape shape() const { return {.layers = layers_, .planes = planes_}; }
  /// The rows of each plane and in it of each layer that has it, in order.
  void for_each_rows(const std::function<void(const CachePlane&, const CacheRows&)>& take) const;
  /// Those of a block, in pieces without gaps, in the order of KvBlock::rows.
  void for_each_piece(const KvExtent& extent, const std::function<void(kernels::Slice, uint64_t bytes)>& take) const;

  /// Positions appended by a forward pass that went through all layers.
  void advance(uint32_t positions);
  /// Appends positions that hold copies of the rows from position 0 on, which must have been computed, over and over.
  void repeat(kernels::Queue& queue, uint32_t positions);
  /// Holds the first `length` positions of `other`, a cache of the same planes and layers, as well: copies the rows
  /// that come after its own, which must be equal to those of `other`.
  void extend_from(kernels::Queue& queue, const KvCache& other, uint32_t length);
  /// The length up to `length` that it can be cut to and go on: 0 where rows in a ring are gone that this would need.
  [[nodiscard]] uint32_t cut_point(uint32_t length) const;
  /// Forgets all positions from `length` on. Precondition: it is a cut_point.
  void truncate(uint32_t length);
  /// A pass of so many positions has not come to its end, and may have written over what rings held. Where nothing can
  /// go on any more, all positions are forgotten.
  void give_up(uint32_t positions);
  /// Appends positions whose rows have been written: those of a block, which goes on or does not.
  void append(uint32_t positions, bool goes_on);

 private:
  KvCache() = default;

  std::unique_ptr<kernels::Buffer> buffer_;
  std::vector<CachePlane> planes_;  // one after the other in the buffer, each with the rows of all its layers
  uint32_t layers_ = 0;
  uint32_t capacity_ = 0;
  uint32_t length_ = 0;
  std::vector<uint32_t> kept_from_;  // of each plane with a ring: the first position whose row is still there
};

}  // namespace dspack::runtime
