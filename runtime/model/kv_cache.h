// The latent KV cache: for each layer of the pass and each position the normalised latent and the rotated key, in FP32
// (exact) or rounded to BF16, F16 or FP8 (kernels/latent_rows.h), allocated in full at once so that a long answer
// cannot run out of memory half-way. A physical layer that a layer map repeats has one such layer for each time.
// Threads: single-thread. Lifetime: owns its buffer. Errors: budget.
#pragma once

#include <memory>
#include <optional>

#include "format/base/result.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// The cache of one layer: `capacity` rows, one behind the other.
struct CacheRows {
  kernels::Slice data;
  Dtype dtype = Dtype::f32;  // f32, bf16, f16 or f8_e4m3
  uint32_t capacity = 0;
  uint64_t row_bytes = 0;

  /// Where a position's row begins.
  [[nodiscard]] kernels::Slice at(uint32_t position) const { return data.at(position * row_bytes); }
};

class KvCache {
 public:
  /// Room for `capacity` positions of `layers` layers, stored as `dtype`: f32, bf16, f16 or f8_e4m3.
  [[nodiscard]] static Result<KvCache> make(kernels::Device& device, uint32_t layers, uint32_t capacity,
                                            kernels::LatentShape shape, Dtype dtype);
  /// Memory of such a cache; nullopt: beyond 2^64.
  [[nodiscard]] static std::optional<uint64_t> bytes_of(uint64_t layers, uint64_t capacity, kernels::LatentShape shape,
                                                        Dtype dtype);

  [[nodiscard]] uint32_t capacity() const { return capacity_; }
  /// Positions that hold a token.
  [[nodiscard]] uint32_t length() const { return length_; }
  [[nodiscard]] uint64_t size_bytes() const { return buffer_->size_bytes(); }

  [[nodiscard]] Dtype dtype() const { return dtype_; }

  /// Rows of the layer that comes `index`-th in the pass.
  [[nodiscard]] CacheRows layer(uint32_t index) const;

  /// Positions appended by a forward pass that went through all layers.
  void advance(uint32_t positions);
  /// Forgets all positions from `length` on.
  void truncate(uint32_t length);

 private:
  KvCache() = default;

  std::unique_ptr<kernels::Buffer> buffer_;
  uint32_t layers_ = 0;
  uint32_t capacity_ = 0;
  uint64_t row_bytes_ = 0;
  uint32_t length_ = 0;
  Dtype dtype_ = Dtype::f32;
};

}  // namespace dspack::runtime
