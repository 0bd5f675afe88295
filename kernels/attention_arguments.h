// Argument types of attention's operations (ops.h): the choice of positions, attention over each kind of cache, and
// what is stored there. Threads, lifetime, errors: as arguments.h.
#pragma once

#include <cstdint>

#include "format/dtype.h"
#include "kernels/arguments.h"
#include "kernels/latent_rows.h"

namespace dspack::kernels {

/// Positions that queries attend to instead of all positions up to their own; ascending and unique.
template <template <class> class To>
struct ChoiceAt {
  To<uint32_t> ids = {};     // [rows, most]; row r uses its first counts[r], each a position in the cache
  To<uint32_t> counts = {};  // [rows], each at least 1 and at most `most`
  uint32_t most = 0;         // columns of ids
  [[nodiscard]] bool empty() const { return is_nowhere(ids); }
  template <class Address>
  [[nodiscard]] ChoiceAt<AddressOf> at(const Address& address) const {
    return {.ids = address(ids), .counts = address(counts), .most = most};
  }
};
using Choice = ChoiceAt<SliceOf>;

/// The lightning indexer of DeepSeek's sparse attention (DeepSeek-V3.2-Exp inference/model.py, class Indexer; the
/// technical report, section 1): each row chooses, among the positions up to its own, the `choice.most` with the
/// largest
///   score(r, j) = sum over h of weights[r, h] * max(queries[r, h] . keys[j], 0)
/// or all of them if there are no more. Among equal scores the lowest position wins; -0 equals 0; a NaN counts as the
/// largest.
/// If a key stands for `every` positions (DeepSeek-V4's compressed entries), a row chooses among the keys whose
/// positions are all at or before its own; there may be none.
template <template <class> class To>
struct ChooseAt {
  To<const float> queries = {};   // [rows, heads, keys.in]
  To<const float> weights = {};   // [rows, heads]
  WeightAt<To<const void>> keys;  // [positions in the cache, dim]: f32, bf16, f16, or f8_e4m3 with a scale for each row
  ChoiceAt<To> choice = {};       // out
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t first_position = 0;   // row r is at position first_position + r
  LivePositionAt<To> live = {};  // added to first_position
  uint32_t every = 1;            // positions that a key stands for

  /// Exclusive bound of the rows' positions.
  [[nodiscard]] uint32_t position_limit() const { return live.empty() ? first_position + rows : live.limit; }
  /// Exclusive bound of the keys that the rows may see.
  [[nodiscard]] uint32_t key_limit() const { return position_limit() / every; }
  template <class Address>
  [[nodiscard]] ChooseAt<AddressOf> at(const Address& address) const {
    return {.queries = address(queries),
            .weights = address(weights),
            .keys = address(keys),
            .choice = choice.at(address),
            .rows = rows,
            .heads = heads,
            .first_position = first_position,
            .live = live.at(address),
            .every = every};
  }
};
using ChooseArgs = ChooseAt<SliceOf>;

/// Attention over the latent cache (absorbed MLA: multi-query attention with keys [latent | rope], values [latent]).
/// Query row r sees cache rows 0 .. first_position + r, or only the positions of its choice; a choice of all positions
/// gives the same bits as no choice. out[r, h] = softmax(q[r,h] . k * scale) . latent.
template <template <class> class To>
struct MlaAttendAt {
  To<const float> query_latent = {};  // [rows, heads, latent_dim]
  To<const float> query_rope = {};    // head h of row r at r * rope_row_stride + h * rope_head_stride, rope_dim values
  To<const void> cache = {};  // [positions] rows of cache_dtype (latent_rows.h), decoded exactly; FP8: 16-byte aligned
  To<float> out = {};         // [rows, heads, latent_dim]
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t rope_row_stride = 0;
  uint32_t rope_head_stride = 0;
  uint32_t first_position = 0;
  float scale = 0;
  Dtype cache_dtype = Dtype::f32;  // f32, bf16, f16 or f8_e4m3
  LivePositionAt<To> live = {};    // added to first_position
  ChoiceAt<To> choice = {};        // empty: all positions

  /// Exclusive bound of the rows' positions.
  [[nodiscard]] uint32_t position_limit() const { return live.empty() ? first_position + rows : live.limit; }
  template <class Address>
  [[nodiscard]] MlaAttendAt<AddressOf> at(const Address& address) const {
    return {.query_latent = address(query_latent),
            .query_rope = address(query_rope),
            .cache = address(cache),
            .out = address(out),
            .rows = rows,
            .heads = heads,
            .latent_dim = latent_dim,
            .rope_dim = rope_dim,
            .rope_row_stride = rope_row_stride,
            .rope_head_stride = rope_head_stride,
            .first_position = first_position,
            .scale = scale,
            .cache_dtype = cache_dtype,
            .live = live.at(address),
            .choice = choice.at(address)};
  }
};
using MlaAttendArgs = MlaAttendAt<SliceOf>;

/// Attention over the latent cache with a key and a value for each head, expanded from the latents (DeepSeek-V3
/// inference/model.py, class MLA, attn_impl "naive"). For every head h, with [k | v](j, h) = kv_b's rows of h .
/// latent(j):
///   out[r, h] = softmax over j <= first_position + r of (queries[r, h] . [k(j, h) | rope(j)] * scale) . v(j, h)
struct ExpandedAttendArgs {
  Weight kv_b;   // [heads * (nope_dim + value_dim), latent_dim]
  Rows queries;  // [rows, heads * (nope_dim + rope_dim)], rotated
  Slice cache;   // as in MlaAttendArgs
  Slice out;     // FP32 [rows, heads, value_dim]
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;
  uint32_t first_position = 0;
  float scale = 0;
  Dtype cache_dtype = Dtype::f32;
};

/// Attention of DeepSeek-V4 (inference/model.py, class Attention): one row of `dim` values is both key and value of a
/// position, for all heads. A row at position p sees the rows of positions max(0, p - window + 1) .. p, oldest first,
/// then the entries of its choice, or without a choice the (p + 1) / every entries whose positions are all <= p.
/// out[r, h] = sum over both of softmax(q[r, h] . k * scale) k, where exp(sinks[h]) counts in the denominator.
struct WindowAttendArgs {
  Slice queries;           // FP32 [rows, heads, dim]
  Slice ring;              // [ring_rows, dim] of cache_dtype: position p at row p % ring_rows
  uint32_t ring_rows = 0;  // at least window + rows - 1
  uint32_t window = 0;     // positions, including the row's own
  Slice entries;           // [entries, dim] of cache_dtype; empty: the layer has none
  uint32_t every = 0;      // positions that an entry stands for
  Choice choice = {};      // indices of entries, counts may be 0; empty: all that the row may see
  Slice sinks;             // FP32 [heads]
  Slice out;               // FP32 [rows, heads, dim]
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t dim = 0;
  uint32_t first_position = 0;
  LivePosition live = {};  // added to first_position
  float scale = 0;
  Dtype cache_dtype = Dtype::f32;  // f32, bf16 or f16

  /// Exclusive bound of the rows' positions.
  [[nodiscard]] uint32_t position_limit() const { return live.empty() ? first_position + rows : live.limit; }
};

/// Stores rows as Queue::store_rows does, in a ring: that of position p at row p % ring_rows.
struct StoreInRingArgs {
  Rows rows;               // at most ring_rows
  Slice ring;              // [ring_rows, rows.cols] of `dtype`
  uint32_t ring_rows = 0;  // positions
  Dtype dtype = Dtype::f32;
  uint32_t first_position = 0;
  LivePosition live = {};  // added to first_position
};

/// Compresses the positions of a sequence to entries (DeepSeek-V4 inference/model.py, class Compressor). Let u be a row
/// of `values`, and v a row of `gates` plus ape[position mod every]. For each of `dim` channels, entry i is the sum of
/// softmax(v) u over its slots: the positions of block i, [i * every, (i + 1) * every). If blocks overlap, u and v have
/// 2 * dim channels, and the slots are the first half of the channels in block i - 1 (none before block 0) and the
/// second half in block i. Then a norm with `gain`, and rotation by position i * every.
struct CompressArgs {
  Rows values;               // [rows, dim or 2 * dim]
  Rows gates;                // same shape as values
  Slice ape;                 // FP32 [every, values.cols]
  Slice state;               // FP32 [state_rows, 2, values.cols]: u, then v, of position p at row p % state_rows
  uint32_t state_rows = 0;   // at least the number of positions that make up an entry, minus one
  Slice entries;             // out: entry i at row i, [.., dim] of `dtype`, for the blocks that the rows complete
  Dtype dtype = Dtype::f32;  // f32, bf16 or f16
  Slice gain;                // FP32 [dim]
  float epsilon = 0;
  Slice cos_sin;          // as in RopeArgs
  uint32_t rope_dim = 0;  // last values of an entry, rotated as neighbouring pairs
  uint32_t dim = 0;
  uint32_t every = 0;
  bool overlaps = false;
  uint32_t first_position = 0;  // position of row 0; the positions before it are in `state`
  LivePosition live = {};       // added to first_position
};

/// Multiplies head by head with a part of the rows of one stored matrix: head h uses the rows
/// [h * head_rows + first_row, h * head_rows + first_row + rows_used) of `weight`. Absorbed MLA thus uses kv_b_proj
/// [heads * (nope + v), latent] without expanding it.
template <template <class> class To>
struct HeadLinearAt {
  WeightAt<To<const void>> weight;
  uint32_t heads = 0;
  uint32_t head_rows = 0;  // nope + v
  uint32_t first_row = 0;  // 0 for the key part, nope for the value part
  uint32_t rows_used = 0;  // nope or v
  To<const float> x = {};  // see head_linear and head_linear_transposed
  uint32_t x_row_stride = 0;
  uint32_t x_head_stride = 0;
  To<float> y = {};
  uint32_t y_row_stride = 0;
  uint32_t y_head_stride = 0;
  uint32_t rows = 0;  // tokens

  template <class Address>
  [[nodiscard]] HeadLinearAt<AddressOf> at(const Address& address) const {
    return {.weight = address(weight),
            .heads = heads,
            .head_rows = head_rows,
            .first_row = first_row,
            .rows_used = rows_used,
            .x = address(x),
            .x_row_stride = x_row_stride,
            .x_head_stride = x_head_stride,
            .y = address(y),
            .y_row_stride = y_row_stride,
            .y_head_stride = y_head_stride,
            .rows = rows};
  }
};
using HeadLinearArgs = HeadLinearAt<SliceOf>;

/// Finishes the projected latents of some positions: norms, rotation, store to the cache.
struct LatentsArgs {
  Rows rows;  // [rows, latent_dim + rope_dim]: latent, then rotary key; overwritten
  LatentShape shape;
  Slice gain;         // FP32 [latent_dim]
  Rows query;         // latents of the queries, the same number of rows, normalised in place; cols = 0: none
  Slice query_gain;   // FP32 [query.cols]
  float epsilon = 0;  // used by both norms
  RopeArgs rope;      // rotation of the rotary keys in `rows`
  Slice cache;        // place of the first row (rope.first_position); empty: `rows` is in the cache already
  Dtype cache_dtype = Dtype::f32;  // f32, bf16, f16 or f8_e4m3
};

}  // namespace dspack::kernels
