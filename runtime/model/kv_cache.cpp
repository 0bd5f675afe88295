#include "runtime/model/kv_cache.h"

#include <fmt/format.h>

#include "format/base/checked.h"

namespace dspack::runtime {

std::optional<uint64_t> KvCache::bytes_of(uint64_t layers, uint64_t capacity, kernels::LatentShape shape, Dtype dtype) {
  const auto rows = checked_mul(layers, capacity);
  if (!rows) return std::nullopt;
  return checked_mul(*rows, kernels::cache_row_bytes(dtype, shape));
}

Result<KvCache> KvCache::make(kernels::Device& device, uint32_t layers, uint32_t capacity, kernels::LatentShape shape,
                              Dtype dtype) {
  const auto bytes = bytes_of(layers, capacity, shape, dtype);
  if (!bytes) return Error{ErrorKind::budget, "the KV cache would exceed 2^64 bytes; ask for less with --ctx"};
  auto buffer = device.allocate(*bytes);
  if (!buffer) {
    return buffer.error().in(
        fmt::format("KV cache of {} positions ({} bytes; ask for less with --ctx)", capacity, *bytes));
  }
  KvCache cache;
  cache.buffer_ = std::move(*buffer);
  cache.layers_ = layers;
  cache.capacity_ = capacity;
  cache.row_bytes_ = kernels::cache_row_bytes(dtype, shape);
  cache.dtype_ = dtype;
  return cache;
}

CacheRows KvCache::layer(uint32_t index) const {
  DSPACK_CHECK(index < layers_, "the cache has no such layer");
  const uint64_t offset = uint64_t{index} * capacity_ * row_bytes_;
  return {.data = {.buffer = buffer_.get(), .offset_bytes = offset},
          .dtype = dtype_,
          .capacity = capacity_,
          .row_bytes = row_bytes_};
}

void KvCache::advance(uint32_t positions) {
  DSPACK_CHECK(positions <= capacity_ - length_, "the cache is full");
  length_ += positions;
}

void KvCache::truncate(uint32_t length) {
  DSPACK_CHECK(length <= length_, "the cache is shorter than that");
  length_ = length;
}

}  // namespace dspack::runtime
