// The KV cache of one sequence: rows by position in every plane that the attention of each layer of the pass declares.
// It is allocated in full at once, so that a long answer cannot run out of memory half-way. A physical layer that a
// layer map repeats has separate rows for each repetition.
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

/// The rows of one plane in one layer, without gaps.
struct CacheRows {
  kernels::Slice data;
  Dtype dtype = Dtype::f32;
  uint32_t rows = 0;
  uint64_t row_bytes = 0;

  [[nodiscard]] kernels::Slice at_row(uint32_t row) const { return data.at(row * row_bytes); }
  /// A position's row. Precondition: a plane with one row per position.
  [[nodiscard]] kernels::Slice at(uint32_t position) const { return at_row(position); }
};

/// A pass writes rows from length() on; then advance() counts them, or give_up() if the pass failed. Other ways to
/// change length(): truncate() to a cut_point(), append() after writing a block's rows, extend_from(), repeat().
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

  /// Rows of a plane in the pass's `layer`-th layer. Precondition: the layer has the plane.
  [[nodiscard]] CacheRows rows(uint32_t layer, std::string_view plane) const;

  [[nodiscard]] KvShape shape() const { return {.layers = layers_, .planes = planes_}; }
  /// Visits the rows by plane, and in each plane by layer, in order.
  void for_each_rows(const std::function<void(const CachePlane&, const CacheRows&)>& take) const;
  /// Visits a block's rows, in pieces without gaps, in the order of KvBlock::rows.
  void for_each_piece(const KvExtent& extent, const std::function<void(kernels::Slice, uint64_t bytes)>& take) const;

  /// Counts positions that a complete pass has appended.
  void advance(uint32_t positions);
  /// Appends `positions` positions with copies of the rows from position 0 on, repeated as often as needed.
  /// Precondition: there are computed positions.
  void repeat(kernels::Queue& queue, uint32_t positions);
  /// Copies rows of `other`, a cache of the same planes and layers, to hold its first `length` positions. Precondition:
  /// the positions already here equal those of `other`.
  void extend_from(kernels::Queue& queue, const KvCache& other, uint32_t length);
  /// The length to which a cut at `length` is possible: `length`, or 0 if continuing there needs ring rows that were
  /// overwritten.
  [[nodiscard]] uint32_t cut_point(uint32_t length) const;
  /// Drops all positions from `length` on. Precondition: a cut_point.
  void truncate(uint32_t length);
  /// A pass of `positions` positions was not completed, and may have overwritten ring rows. If the sequence cannot
  /// continue without them, all positions are dropped.
  void give_up(uint32_t positions);
  /// Counts positions of a block whose rows have been written. `goes_on`: the block's.
  void append(uint32_t positions, bool goes_on);

 private:
  KvCache() = default;

  std::unique_ptr<kernels::Buffer> buffer_;
  std::vector<CachePlane> planes_;  // consecutive in the buffer, each with the rows of all its layers
  uint32_t layers_ = 0;
  uint32_t capacity_ = 0;
  uint32_t length_ = 0;
  std::vector<uint32_t> kept_from_;  // [planes]: in a ring, the first position whose row still exists
};

}  // namespace dspack::runtime
