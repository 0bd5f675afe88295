// Rows of an FP8 cache (kernels/latent_rows.h) as FP32, for attention. For the instruction set files only (see
// table.inl.h).
//
// A block of positions is decoded once for a group of heads, and from there on it is an FP32 cache: the result has the
// bits that one with the decoded values would give. A value is one product of a code and its tile's scale, rounded to
// FP32 as anywhere else: LoadE4m3's power of two moves between the two factors without rounding.
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

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

/// Blocks of an FP8 cache, decoded.
template <class V>
struct DecodedBlocks {
  static const std::byte* at(const AttendTask& task, uint32_t begin, uint32_t n) {
    const std::byte* row = task.cache + begin * task.fp8_row.bytes;
    float* to = task.block;
    for (uint32_t i = 0; i < n; ++i, row += task.fp8_row.bytes, to += size_t{task.latent_dim} + task.rope_dim)
      decode_row<V>(task, row, to);
    return bytes_of(task.block);
  }
};

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
