#include "runtime/model/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"

namespace dspack::runtime {

namespace {

// Planes begin where vectors can be loaded.
constexpr uint64_t kPlaneAlignment = 64;

}  // namespace

std::optional<uint64_t> KvCache::bytes_of(uint64_t layers, uint64_t capacity, std::span<const CachePlane> planes) {
  uint64_t end = 0;
  for (const CachePlane& plane : planes) {
    const auto rows = checked_mul(plane.layers_of(layers), capacity);
    if (!rows) return std::nullopt;
    const auto begin = checked_mul(ceil_div(end, kPlaneAlignment), kPlaneAlignment);
    const auto bytes = checked_mul(*rows, plane.row_bytes);
    const auto sum = begin && bytes ? checked_add(*begin, *bytes) : std::nullopt;
    if (!sum) return std::nullopt;
    end = *sum;
  }
  return end;
}

Result<KvCache> KvCache::make(kernels::Device& device, uint32_t layers, uint32_t capacity,
                              std::vector<CachePlane> planes) {
  const auto bytes = bytes_of(layers, capacity, planes);
  if (!bytes) return Error{ErrorKind::budget, "the KV cache would exceed 2^64 bytes; ask for less with --ctx"};
  auto buffer = device.allocate(*bytes);
  if (!buffer) {
    return buffer.error().in(
        fmt::format("KV cache of {} positions ({}; ask for less with --ctx)", capacity, size_words(*bytes)));
  }
  KvCache cache;
  cache.buffer_ = std::move(*buffer);
  cache.planes_ = std::move(planes);
  cache.layers_ = layers;
  cache.capacity_ = capacity;
  return cache;
}

CacheRows KvCache::rows(uint32_t layer, std::string_view plane) const {
  DSPACK_CHECK(layer < layers_, "the cache has no such layer");
  uint64_t begin = 0;
  for (const CachePlane& each : planes_) {
    begin = round_up(begin, kPlaneAlignment);
    if (each.name == plane) {
      const auto found = std::ranges::lower_bound(each.layers, layer);
      DSPACK_CHECK(each.layers.empty() || (found != each.layers.end() && *found == layer),
                   "the layer does not have this plane");
      const uint64_t slot = each.layers.empty() ? layer : static_cast<uint64_t>(found - each.layers.begin());
      const uint64_t offset = begin + slot * capacity_ * each.row_bytes;
      return {.data = {.buffer = buffer_.get(), .offset_bytes = offset},
              .dtype = each.dtype,
              .capacity = capacity_,
              .row_bytes = each.row_bytes};
    }
    begin += each.layers_of(layers_) * capacity_ * each.row_bytes;
  }
  DSPACK_CHECK(false, "the cache has no such plane");
  return {};
}

void KvCache::for_each_rows(const std::function<void(const CacheRows&)>& take) const {
  for (const CachePlane& plane : planes_) {
    for (uint32_t slot = 0; slot < plane.layers_of(layers_); ++slot)
      take(rows(plane.layers.empty() ? slot : plane.layers[slot], plane.name));
  }
}

void KvCache::advance(uint32_t positions) {
  DSPACK_CHECK(positions <= capacity_ - length_, "the cache is full");
  length_ += positions;
}

void KvCache::repeat(kernels::Queue& queue, uint32_t positions) {
  DSPACK_CHECK(length_ > 0 && positions <= capacity_ - length_, "nothing to repeat, or the cache is full");
  for_each_rows([&](const CacheRows& rows) {
    // What is there doubles each time.
    for (uint32_t held = length_; held < length_ + positions;) {
      const uint32_t count = std::min(held, length_ + positions - held);
      queue.copy(rows.at(held), rows.at(0), count * rows.row_bytes);
      held += count;
    }
  });
  length_ += positions;
}

void KvCache::extend_from(kernels::Queue& queue, const KvCache& other, uint32_t length) {
  DSPACK_CHECK(planes_ == other.planes_ && layers_ == other.layers_, "a cache of another kind");
  DSPACK_CHECK(length_ <= length && length <= other.length_ && length <= capacity_, "positions that are not there");
  std::vector<CacheRows> to;
  for_each_rows([&](const CacheRows& rows) { to.push_back(rows); });
  auto next = to.begin();
  other.for_each_rows([&](const CacheRows& from) {
    queue.copy(next->at(length_), from.at(length_), (length - length_) * from.row_bytes);
    ++next;
  });
  length_ = length;
}

void KvCache::truncate(uint32_t length) {
  DSPACK_CHECK(length <= length_, "the cache is shorter than that");
  length_ = length;
}

}  // namespace dspack::runtime
