// Attention over the latent cache. For the instruction set files only (see table.inl.h).
//
// The heads of one row walk the cache in blocks of positions. All heads share the keys, so a block is read from memory
// once and serves one group of heads after another from the L2 cache.
//
//   positions  0 ......... 63 | 64 ........ 127 | ... first_position + row
//              scores [heads][64] -> maximum -> weights -> out = out * exp(old maximum - new) + weights . latent
//
// Blocks are counted from the first position and every head has its own sums, so a head's result depends only on its
// query and the positions that it sees, not on the group, the row's place in the call, or how the prompt was divided.
// For chosen positions (sparse attention) the rows of a block are gathered first, once for all heads that walk
// together, unless they are consecutive. The cache may have a smaller type (L), whose values are widened to FP32
// exactly, in registers. Rows of FP8 are first decoded to FP32, a block of positions once for all heads that walk
// together; the result has the bits of an FP32 cache with the decoded values. A decoded value is one product of a code
// and its tile's scale, rounded to FP32: LoadE4m3's power of two moves between the two factors without rounding.
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/elementwise.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

constexpr uint32_t kHeadGroup = 8;
constexpr uint32_t kMaxGroups = 16;  // that walk together: queries and outputs of 128 heads of V3 are 512 KB
constexpr uint32_t kBlockPositions = kAttendPositions;

struct AttendGroup {
  const float* latent[kHeadGroup];  // queries
  const float* rope[kHeadGroup];
  float* out[kHeadGroup];
  float maximum[kHeadGroup];
  float sum[kHeadGroup];
  alignas(64) float scores[kHeadGroup][kBlockPositions];
  uint32_t heads = 0;
  // The part of the next block that is prefetched while this one is scored: offset from this one, bytes for each tile.
  size_t ahead = 0;
  size_t ahead_bytes = 0;
};

template <class L>
size_t key_bytes_of(const AttendTask& task) {
  return bytes_for<L>(size_t{task.latent_dim} + task.rope_dim);
}

/// Computes the scores of O positions from the block's `position` on, for T heads from `head` on. Flattened, since a
/// call for the columns that fill no vector would keep the sums in memory.
template <class V, class L, uint32_t O, uint32_t T>
[[gnu::flatten]] void score_tile(const AttendTask& task, const std::byte* block, uint32_t position, uint32_t head,
                                 AttendGroup& group) {
  const size_t key_bytes = key_bytes_of<L>(task);
  const std::byte* keys[O];
  const std::byte* rope_keys[O];
  const float* latent[T];
  const float* rope[T];
  for (uint32_t o = 0; o < O; ++o) {
    keys[o] = block + (position + o) * key_bytes;
    rope_keys[o] = keys[o] + bytes_for<L>(task.latent_dim);
  }
  for (uint32_t t = 0; t < T; ++t) {
    latent[t] = group.latent[head + t];
    rope[t] = group.rope[head + t];
  }
  V acc[O][T] = {};
  add_dots<V, L, O, T>(keys, latent, task.latent_dim, acc);
  add_dots<V, L, O, T>(rope_keys, rope, task.rope_dim, acc);
  float sums[T][O];
  if constexpr (V::kHasSums && O * T == kLanes) {
    V all[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i)
      all[i] = acc[i % O][i / O];
    V::sums(all).store(sums[0]);
  } else {
    for (uint32_t i = 0; i < O * T; ++i)
      sums[i / O][i % O] = acc[i % O][i / O].sum();
  }
  for (uint32_t t = 0; t < T; ++t) {
    for (uint32_t o = 0; o < O; ++o)
      group.scores[head + t][position + o] = sums[t][o] * task.scale;
  }
}

/// The keys of O positions stay in the L1 cache while all heads of the group are multiplied with them.
template <class V, class L, uint32_t O>
void score_heads(const AttendTask& task, const std::byte* block, uint32_t position, AttendGroup& group) {
  constexpr uint32_t kTile = V::kTileRows;
  uint32_t head = 0;
  for (; head + kTile <= group.heads; head += kTile)
    score_tile<V, L, O, kTile>(task, block, position, head, group);
  for (; head < group.heads; ++head)
    score_tile<V, L, O, 1>(task, block, position, head, group);
}

template <class V, class L>
void score_block(const AttendTask& task, const std::byte* block, uint32_t n, AttendGroup& group) {
  constexpr uint32_t kTile = V::kTileOutputs;
  constexpr size_t kLine = 64;
  uint32_t position = 0;
  size_t ahead = group.ahead;
  for (; position + kTile <= n; position += kTile, ahead += group.ahead_bytes) {
    for (size_t at = 0; at < group.ahead_bytes; at += kLine)
      prefetch<2>(block, ahead + at);
    score_heads<V, L, kTile>(task, block, position, group);
  }
  for (; position < n; ++position)
    score_heads<V, L, 1>(task, block, position, group);
}

/// Turns the scores of one head into weights relative to the running maximum; returns the factor for the earlier sums.
template <class V>
float weigh_block(uint32_t n, uint32_t head, AttendGroup& group) {
  float* scores = group.scores[head];
  for (uint32_t i = n; i < kBlockPositions; ++i)
    scores[i] = -__builtin_inff();
  V largest = V::set(group.maximum[head]);
  for (uint32_t i = 0; i < kBlockPositions; i += kLanes)
    largest = V::max(V::load(scores + i), largest);  // passes over a NaN
  alignas(64) float lanes[kLanes];
  largest.store(lanes);
  float maximum = lanes[0];
  for (const float lane : lanes)
    maximum = lane > maximum ? lane : maximum;
  V sum = V::zero();
  for (uint32_t i = 0; i < kBlockPositions; i += kLanes) {
    const V weight = exponential(V::sub(V::load(scores + i), V::set(maximum)));
    weight.store(scores + i);
    sum = V::add(sum, weight);
  }
  const float factor = exponential(V::set(group.maximum[head] - maximum)).first();
  group.sum[head] = group.sum[head] * factor + sum.sum();
  group.maximum[head] = maximum;
  return factor;
}

/// out = out * factor + weights . latent for 16 J columns from `column` on and T heads from `head` on.
template <class V, class L, uint32_t J, uint32_t T>
void value_tile(const AttendTask& task, const std::byte* block, uint32_t n, uint32_t column, uint32_t head,
                const float* factors, AttendGroup& group) {
  const size_t key_bytes = key_bytes_of<L>(task);
  const std::byte* values = block + bytes_for<L>(column);
  const uint32_t width = smaller(task.latent_dim - column, J * kLanes);
  const bool whole = width == J * kLanes;
  const float* weights[T];
  V acc[J][T];
  for (uint32_t t = 0; t < T; ++t) {
    weights[t] = group.scores[head + t];
    for (uint32_t j = 0; j < J; ++j) {
      const float* out = group.out[head + t] + column + size_t{j} * kLanes;
      const V before = whole ? V::load(out) : load_part<V, LoadF32>(bytes_of(out), width);
      acc[j][t] = V::mul(before, V::set(factors[head + t]));
    }
  }
  if constexpr (J == 1) {
    if (!whole) {
      add_part_columns<V, L, T>(values, key_bytes, width, weights, n, acc);
      for (uint32_t t = 0; t < T; ++t)
        store_part(acc[0][t], group.out[head + t] + column, width);
      return;
    }
  }
  add_columns<V, L, J, T>(values, key_bytes, weights, n, acc);
  for (uint32_t j = 0; j < J; ++j) {
    for (uint32_t t = 0; t < T; ++t)
      acc[j][t].store(group.out[head + t] + column + size_t{j} * kLanes);
  }
}

/// Same for all heads of the group, while these columns of the block stay in the L1 cache.
template <class V, class L, uint32_t J>
void value_heads(const AttendTask& task, const std::byte* block, uint32_t n, uint32_t column, const float* factors,
                 AttendGroup& group) {
  constexpr uint32_t kTile = V::kTileRows;
  uint32_t head = 0;
  for (; head + kTile <= group.heads; head += kTile)
    value_tile<V, L, J, kTile>(task, block, n, column, head, factors, group);
  for (; head < group.heads; ++head)
    value_tile<V, L, J, 1>(task, block, n, column, head, factors, group);
}

template <class V, class L>
void attend_block(const AttendTask& task, const std::byte* block, uint32_t n, AttendGroup& group) {
  constexpr uint32_t kWide = V::kTileColumns;
  score_block<V, L>(task, block, n, group);
  float factors[kHeadGroup];
  for (uint32_t head = 0; head < group.heads; ++head)
    factors[head] = weigh_block<V>(n, head, group);
  uint32_t column = 0;
  for (; column + kWide * kLanes <= task.latent_dim; column += kWide * kLanes)
    value_heads<V, L, kWide>(task, block, n, column, factors, group);
  for (; column < task.latent_dim; column += kLanes)
    value_heads<V, L, 1>(task, block, n, column, factors, group);
}

inline void start_group(const AttendTask& task, uint32_t row, uint32_t head, uint32_t heads, AttendGroup& group) {
  group.heads = heads;
  for (uint32_t h = 0; h < heads; ++h) {
    const size_t latent = (size_t{row} * task.heads + head + h) * task.latent_dim;
    group.latent[h] = task.query_latent + latent;
    group.rope[h] = task.query_rope + row * task.rope_row_stride + (head + h) * task.rope_head_stride;
    group.out[h] = task.out + latent;
    group.maximum[h] = -__builtin_inff();
    group.sum[h] = 0;
    for (uint32_t i = 0; i < task.latent_dim; ++i)
      group.out[h][i] = 0;
  }
}

/// Adds each head's sink to its sums, as a score whose value is zero. `head`: the group's first.
template <class V>
void add_sinks(const AttendTask& task, uint32_t head, AttendGroup& group) {
  for (uint32_t h = 0; h < group.heads; ++h) {
    const float sink = task.sinks[head + h];
    const float maximum = sink > group.maximum[h] ? sink : group.maximum[h];
    const float factor = exponential(V::set(group.maximum[h] - maximum)).first();
    group.sum[h] = group.sum[h] * factor + exponential(V::set(sink - maximum)).first();
    group.maximum[h] = maximum;
    for (uint32_t i = 0; i < task.latent_dim; ++i)
      group.out[h][i] *= factor;
  }
}

inline void end_group(const AttendTask& task, const AttendGroup& group) {
  for (uint32_t h = 0; h < group.heads; ++h) {
    for (uint32_t i = 0; i < task.latent_dim; ++i)
      group.out[h][i] /= group.sum[h];
  }
}

inline uint32_t positions_seen(const AttendTask& task, uint32_t row) {
  return task.chosen == nullptr ? task.first_position + row + 1 : task.counts[row];
}

/// The i-th position that `row` sees.
inline uint32_t position_seen(const AttendTask& task, uint32_t row, uint32_t i) {
  return task.chosen == nullptr ? i : task.chosen[size_t{row} * task.most_chosen + i];
}

/// Blocks that are read in place if they are contiguous in the cache, and gathered otherwise.
template <class L>
struct StoredBlocks {
  static bool is_in_place(const AttendTask& task) { return task.chosen == nullptr; }
  static uint32_t seen(const AttendTask& task, uint32_t row) { return positions_seen(task, row); }
  static const std::byte* at(const AttendTask& task, uint32_t row, uint32_t begin, uint32_t n) {
    const size_t key_bytes = key_bytes_of<L>(task);
    const uint32_t first = position_seen(task, row, begin);
    if (position_seen(task, row, begin + n - 1) == first + n - 1) return task.cache + first * key_bytes;
    auto* to = reinterpret_cast<std::byte*>(task.block);
    for (uint32_t i = 0; i < n; ++i)
      __builtin_memcpy(to + i * key_bytes, task.cache + position_seen(task, row, begin + i) * key_bytes, key_bytes);
    return to;
  }
};

/// Blocks of a window's rows in a ring, then of entries.
template <class L>
struct WindowBlocks {
  static bool is_in_place(const AttendTask& /*task*/) { return false; }
  static uint32_t in_window(const AttendTask& task, uint32_t row) {
    return smaller(task.window, task.first_position + row + 1);
  }
  static uint32_t seen(const AttendTask& task, uint32_t row) {
    uint32_t entries = 0;
    if (task.entries != nullptr)
      entries = task.chosen == nullptr ? (task.first_position + row + 1) / task.every : task.counts[row];
    return in_window(task, row) + entries;
  }
  static const std::byte* row_at(const AttendTask& task, uint32_t row, uint32_t i) {
    const size_t key_bytes = key_bytes_of<L>(task);
    const uint32_t window = in_window(task, row);
    if (i >= window) return task.entries + position_seen(task, row, i - window) * key_bytes;
    return task.cache + (task.first_position + row + 1 - window + i) % task.ring_rows * key_bytes;
  }
  static const std::byte* at(const AttendTask& task, uint32_t row, uint32_t begin, uint32_t n) {
    const size_t key_bytes = key_bytes_of<L>(task);
    const std::byte* first = row_at(task, row, begin);
    uint32_t together = 1;
    while (together < n && row_at(task, row, begin + together) == first + together * key_bytes)
      ++together;
    if (together == n) return first;
    auto* to = reinterpret_cast<std::byte*>(task.block);
    __builtin_memcpy(to, first, together * key_bytes);
    for (uint32_t i = together; i < n; ++i)
      __builtin_memcpy(to + i * key_bytes, row_at(task, row, begin + i), key_bytes);
    return to;
  }
};

/// Blocks::seen returns the number of positions that a row attends to; Blocks::at returns the rows of `n` of them from
/// the `begin`-th on, in the type of L; Blocks::is_in_place, whether these are memory in which the next ones follow.
template <class V, class L, class Blocks = StoredBlocks<L>>
void attend_items(const AttendTask& task, RowRange items) {
  AttendGroup groups[kMaxGroups];
  for (uint32_t item = items.begin; item < items.end;) {
    const uint32_t row = item / task.heads;
    const uint32_t first = item % task.heads;
    const uint32_t heads = smaller(kMaxGroups * kHeadGroup, smaller(task.heads - first, items.end - item));
    uint32_t count = 0;
    for (uint32_t head = 0; head < heads; head += kHeadGroup)
      start_group(task, row, first + head, smaller(kHeadGroup, heads - head), groups[count++]);
    const uint32_t positions = Blocks::seen(task, row);
    for (uint32_t begin = 0; begin < positions; begin += kBlockPositions) {
      const uint32_t n = smaller(kBlockPositions, positions - begin);
      const std::byte* block = Blocks::at(task, row, begin, n);
      const bool goes_on = Blocks::is_in_place(task) && begin + n < positions;
      for (uint32_t i = 0; i < count; ++i) {
        groups[i].ahead_bytes = goes_on ? key_bytes_of<L>(task) * V::kTileOutputs / count : 0;
        groups[i].ahead = n * key_bytes_of<L>(task) + i * (n / V::kTileOutputs) * groups[i].ahead_bytes;
        attend_block<V, L>(task, block, n, groups[i]);
      }
    }
    for (uint32_t i = 0; i < count; ++i) {
      if (task.sinks != nullptr) add_sinks<V>(task, first + i * kHeadGroup, groups[i]);
      end_group(task, groups[i]);
    }
    item += heads;
  }
}

/// to[i] = from[i] * scale, i < n.
template <class V, class L>
void decode_values(const std::byte* from, float scale, uint32_t n, float* to) {
  const V factor = V::set(scale * L::kUnit);
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    V::mul(L::template load<V>(from + bytes_for<L>(i)), factor).store(to + i);
  if (i < n) store_part(V::mul(load_part<V, L>(from + bytes_for<L>(i), n - i), factor), to + i, n - i);
}

template <class V>
void decode_row(const AttendTask& task, const std::byte* row, float* to) {
  for (uint32_t begin = 0; begin < task.latent_dim; begin += kLatentTile) {
    float scale;
    __builtin_memcpy(&scale, row + task.fp8_row.scales_at + begin / kLatentTile * sizeof(scale), sizeof(scale));
    decode_values<V, LoadE4m3>(row + begin, scale, smaller(kLatentTile, task.latent_dim - begin), to + begin);
  }
  decode_values<V, LoadBf16>(row + task.fp8_row.rope_at, 1.0F, task.rope_dim, to + task.latent_dim);
}

/// Blocks of an FP8 cache, decoded to FP32.
template <class V>
struct DecodedBlocks {
  static bool is_in_place(const AttendTask& /*task*/) { return false; }
  static uint32_t seen(const AttendTask& task, uint32_t row) { return positions_seen(task, row); }
  static const std::byte* at(const AttendTask& task, uint32_t row, uint32_t begin, uint32_t n) {
    float* to = task.block;
    for (uint32_t i = 0; i < n; ++i, to += size_t{task.latent_dim} + task.rope_dim)
      decode_row<V>(task, task.cache + position_seen(task, row, begin + i) * task.fp8_row.bytes, to);
    return bytes_of(task.block);
  }
};

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
