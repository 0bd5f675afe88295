#include "runtime/model/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"

namespace dspack::runtime {

namespace {

// Planes are aligned for vector loads.
constexpr uint64_t kPlaneAlignment = 64;

}  // namespace

std::optional<uint64_t> KvCache::bytes_of(uint64_t layers, uint64_t capacity, std::span<const CachePlane> planes) {
  uint64_t end = 0;
  for (const CachePlane& plane : planes) {
    const auto rows = checked_mul(plane.layers_of(layers), plane.rows_for(capacity));
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
  cache.kept_from_.resize(cache.planes_.size());
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
      const uint64_t rows = each.rows_for(capacity_);
      return {.data = {.buffer = buffer_.get(), .offset_bytes = begin + slot * rows * each.row_bytes},
              .dtype = each.dtype,
              .rows = static_cast<uint32_t>(rows),
              .row_bytes = each.row_bytes};
    }
    begin += each.layers_of(layers_) * each.rows_for(capacity_) * each.row_bytes;
  }
  DSPACK_CHECK(false, "the cache has no such plane");
  return {};
}

void KvCache::for_each_rows(const std::function<void(const CachePlane&, const CacheRows&)>& take) const {
  for (const CachePlane& plane : planes_) {
    for (uint32_t slot = 0; slot < plane.layers_of(layers_); ++slot)
      take(plane, rows(plane.layers.empty() ? slot : plane.layers[slot], plane.name));
  }
}

void KvCache::for_each_piece(const KvExtent& extent, const std::function<void(kernels::Slice, uint64_t)>& take) const {
  for_each_rows([&](const CachePlane& plane, const CacheRows& rows) {
    const uint64_t count = plane.block_rows(extent);
    if (plane.ring == 0) return take(rows.at_row(extent.first / plane.every), count * rows.row_bytes);
    // The rows may wrap around the ring's end, at most once.
    const uint32_t row = plane.needed_from(extent.end) % plane.ring;
    const uint64_t until_end = std::min<uint64_t>(count, plane.ring - row);
    if (until_end > 0) take(rows.at_row(row), until_end * rows.row_bytes);
    if (until_end < count) take(rows.at_row(0), (count - until_end) * rows.row_bytes);
  });
}

void KvCache::advance(uint32_t positions) {
  DSPACK_CHECK(positions <= capacity_ - length_, "the cache is full");
  DSPACK_CHECK(cut_point(length_) == length_, "a sequence that cannot go on");
  length_ += positions;
  for (size_t i = 0; i < planes_.size(); ++i) {
    if (planes_[i].ring != 0 && length_ > planes_[i].ring)
      kept_from_[i] = std::max(kept_from_[i], length_ - planes_[i].ring);
  }
}

void KvCache::give_up(uint32_t positions) {
  for (size_t i = 0; i < planes_.size(); ++i) {
    const uint32_t reached = length_ + positions;
    if (planes_[i].ring != 0 && reached > planes_[i].ring)
      kept_from_[i] = std::max(kept_from_[i], reached - planes_[i].ring);
  }
  truncate(cut_point(length_));
}

void KvCache::append(uint32_t positions, bool goes_on) {
  DSPACK_CHECK(positions <= capacity_ - length_, "the cache is full");
  length_ += positions;
  for (size_t i = 0; i < planes_.size(); ++i)
    kept_from_[i] = goes_on ? planes_[i].needed_from(length_) : length_;
}

void KvCache::repeat(kernels::Queue& queue, uint32_t positions) {
  DSPACK_CHECK(length_ > 0 && positions <= capacity_ - length_, "nothing to repeat, or the cache is full");
  for_each_rows([&](const CachePlane& plane, const CacheRows& rows) {
    const bool is_ring = plane.ring != 0;
    const uint32_t end = is_ring ? plane.ring : (length_ + positions) / plane.every;
    uint32_t held = is_ring ? std::min(length_, plane.ring) : length_ / plane.every;
    const std::vector<std::byte> zeros(held == 0 && end > 0 ? rows.row_bytes : 0);
    if (!zeros.empty()) {  // no entry is complete yet
      queue.upload(rows.at_row(0), zeros);
      queue.synchronize();
      held = 1;
    }
    // Each copy doubles the filled part.
    while (held < end) {
      const uint32_t count = std::min(held, end - held);
      queue.copy(rows.at_row(held), rows.at_row(0), count * rows.row_bytes);
      held += count;
    }
  });
  length_ += positions;
}

void KvCache::extend_from(kernels::Queue& queue, const KvCache& other, uint32_t length) {
  DSPACK_CHECK(planes_ == other.planes_ && layers_ == other.layers_, "a cache of another kind");
  DSPACK_CHECK(length_ <= length && length <= other.length_ && length <= capacity_, "positions that are not there");
  DSPACK_CHECK(other.cut_point(length) == length, "positions that nothing can go on from");
  std::vector<CacheRows> to;
  for_each_rows([&](const CachePlane&, const CacheRows& rows) { to.push_back(rows); });
  auto next = to.begin();
  other.for_each_rows([&](const CachePlane& plane, const CacheRows& from) {
    const uint32_t first = plane.ring != 0 ? 0 : length_ / plane.every;
    const uint32_t end = plane.ring != 0 ? plane.ring : length / plane.every;
    queue.copy(next->at_row(first), from.at_row(first), (end - first) * from.row_bytes);
    ++next;
  });
  length_ = length;
  kept_from_ = other.kept_from_;
}

uint32_t KvCache::cut_point(uint32_t length) const {
  for (size_t i = 0; i < planes_.size(); ++i) {
    if (planes_[i].ring != 0 && planes_[i].needed_from(length) < kept_from_[i]) return 0;
  }
  return length;
}

void KvCache::truncate(uint32_t length) {
  DSPACK_CHECK(length <= length_, "the cache is shorter than that");
  DSPACK_CHECK(cut_point(length) == length, "positions that nothing can go on from");
  length_ = length;
  if (length == 0) std::ranges::fill(kept_from_, 0);
}

}  // namespace dspack::runtime
