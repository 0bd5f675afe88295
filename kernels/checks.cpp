#include "kernels/checks.h"

#include <algorithm>
#include <string>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/sample_noise.h"

namespace dspack::kernels {
namespace {

constexpr uint64_t kFloatBytes = 4;
constexpr uint32_t kLargestDimension = 1U << 31;  // sums of two dimensions stay within 32 bits

uint64_t product(uint64_t a, uint64_t b) {
  const auto result = checked_mul(a, b);
  DSPACK_CHECK(result.has_value(), "size overflows");
  return *result;
}

uint64_t sum(uint64_t a, uint64_t b) {
  const auto result = checked_add(a, b);
  DSPACK_CHECK(result.has_value(), "size overflows");
  return *result;
}

/// Bytes from the first value to the end of the last one, of `rows` rows of `heads` vectors of `length` values.
uint64_t strided_bytes(uint32_t rows, uint64_t row_stride, uint32_t heads, uint64_t head_stride, uint32_t length) {
  const uint64_t last = sum(product(rows - 1, row_stride), product(heads - 1, head_stride));
  return product(sum(last, length), kFloatBytes);
}

void check_floats(Slice place, uint64_t bytes) {
  check_extent(place, bytes);
  DSPACK_CHECK(place.offset_bytes % kFloatBytes == 0, "FP32 values at an odd offset");
}

void check_rows(const Rows& rows) {
  DSPACK_CHECK(rows.stride >= rows.cols, "rows overlap: stride is less than the number of columns");
  if (rows.rows == 0 || rows.cols == 0) return;
  check_floats(rows.data, strided_bytes(rows.rows, rows.stride, 1, 0, rows.cols));
}

void check_stored(Slice place, Dtype dtype, uint64_t values) {
  DSPACK_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16,
               "rows cannot be stored as " + std::string(to_string(dtype)));
  const uint64_t element_bytes = bytes_of(dtype, 1);
  check_extent(place, product(values, element_bytes));
  DSPACK_CHECK(place.offset_bytes % element_bytes == 0, "stored values at an odd offset");
}

/// Checks `rows` rows of a latent cache.
void check_cache(Slice place, Dtype dtype, uint64_t rows, LatentShape shape) {
  if (dtype != Dtype::f8_e4m3) return check_stored(place, dtype, product(rows, sum(shape.latent_dim, shape.rope_dim)));
  check_extent(place, product(rows, fp8_row(shape).bytes));
  DSPACK_CHECK(place.offset_bytes % 16 == 0, "FP8 rows at an odd offset");
}

void check_weight(const Weight& weight) {
  DSPACK_CHECK(weight.out > 0 && weight.in > 0, "empty weight");
  DSPACK_CHECK(weight.out < kLargestDimension && weight.in < kLargestDimension, "weight dimension out of range");
  const bool is_scaled = !weight.planes[kScales].empty();
  DSPACK_CHECK(!is_scaled || (weight.block_out > 0 && weight.block_in > 0), "scale without block sizes");
  DSPACK_CHECK(is_packed(weight.coding) || (weight.scale == ScaleCoding::f32 && weight.global == GlobalScale::none),
               "scales that this coding cannot have");
  DSPACK_CHECK(is_scaled || !facts_of(weight.coding).has_zeros, "zero points without scales");
  DSPACK_CHECK(
      !is_scaled || !is_packed(weight.coding) || weight.block_in % kPackedRun == 0 || weight.block_in >= weight.in,
      "a block of scales that ends within a vector of packed codes");
  for (size_t plane = 0; plane < (is_scaled ? kPlanes : kScales); ++plane) {
    const PlaneSize size = plane_size(weight, plane);
    if (size.bytes == 0) continue;
    check_extent(weight.planes[plane], size.bytes);
    DSPACK_CHECK(weight.planes[plane].offset_bytes % size.alignment == 0, "weight is not aligned to its elements");
  }
}

void check_disjoint(const Rows& a, const Rows& b) {
  if (a.data.buffer != b.data.buffer || a.rows == 0 || b.rows == 0) return;
  const uint64_t a_end = a.data.offset_bytes + strided_bytes(a.rows, a.stride, 1, 0, a.cols);
  const uint64_t b_end = b.data.offset_bytes + strided_bytes(b.rows, b.stride, 1, 0, b.cols);
  // Interleaved columns of one matrix (equal strides) are not checked; the caller guarantees that they are disjoint.
  const bool apart = a_end <= b.data.offset_bytes || b_end <= a.data.offset_bytes;
  DSPACK_CHECK(apart || a.stride == b.stride, "input and output overlap");
}

/// `x_length` and `y_length`: values that one head of one token reads and writes.
void check_heads(const HeadLinearArgs& args, uint32_t x_length, uint32_t y_length) {
  check_weight(args.weight);
  DSPACK_CHECK(uint64_t{args.first_row} + args.rows_used <= args.head_rows, "rows beyond the head");
  DSPACK_CHECK(product(args.heads, args.head_rows) <= args.weight.out, "heads beyond the weight");
  if (args.rows == 0 || args.heads == 0) return;
  check_floats(args.x, strided_bytes(args.rows, args.x_row_stride, args.heads, args.x_head_stride, x_length));
  check_floats(args.y, strided_bytes(args.rows, args.y_row_stride, args.heads, args.y_head_stride, y_length));
}

/// Number of positions that an operation on `rows` rows may reach.
uint64_t positions_of(const LivePosition& live, uint64_t first, uint64_t rows) {
  if (live.empty()) return sum(first, rows);
  check_floats(live.value, sizeof(uint32_t));
  DSPACK_CHECK(sum(first, rows) <= live.limit, "more rows than there are positions");
  return live.limit;
}

}  // namespace

void check_extent(Slice place, uint64_t bytes) {
  if (bytes == 0) return;
  DSPACK_CHECK(!place.empty(), "no buffer");
  DSPACK_CHECK(sum(place.offset_bytes, bytes) <= place.buffer->size_bytes(), "reaches beyond the buffer");
}

void check_linear(const Weight& weight, const Rows& x, const Rows& y) {
  check_weight(weight);
  check_rows(x);
  check_rows(y);
  DSPACK_CHECK(x.cols == weight.in && y.cols == weight.out, "weight does not fit input and output");
  DSPACK_CHECK(x.rows == y.rows, "input and output differ in rows");
  check_disjoint(x, y);
}

void check_head_linear(const HeadLinearArgs& args) {
  check_heads(args, args.weight.in, args.rows_used);
}

void check_head_linear_transposed(const HeadLinearArgs& args) {
  check_heads(args, args.rows_used, args.weight.in);
}

void check_rms_norm(const Rows& x, Slice gain, const Rows& y) {
  check_same_shape(x, y);
  DSPACK_CHECK(x.cols > 0, "norm of nothing");
  if (!gain.empty()) check_floats(gain, product(x.cols, kFloatBytes));
}

void check_layer_norm(const Rows& x, Slice gain, Slice bias, const Rows& y) {
  check_rms_norm(x, gain, y);
  check_floats(gain, product(x.cols, kFloatBytes));
  check_floats(bias, product(x.cols, kFloatBytes));
}

void check_rope(const RopeArgs& args) {
  DSPACK_CHECK(args.dim % 2 == 0, "rotary dimension is odd");
  if (args.rows == 0 || args.heads == 0 || args.dim == 0) return;
  check_floats(args.data, strided_bytes(args.rows, args.row_stride, args.heads, args.head_stride, args.dim));
  check_floats(args.cos_sin,
               product(product(positions_of(args.live, args.first_position, args.rows), args.dim), kFloatBytes));
}

namespace {

void check_choice(const Choice& choice, uint32_t rows) {
  DSPACK_CHECK(choice.most > 0, "a choice of nothing");
  check_floats(choice.ids, product(product(rows, choice.most), sizeof(uint32_t)));
  check_floats(choice.counts, product(rows, sizeof(uint32_t)));
}

}  // namespace

void check_choose(const ChooseArgs& args) {
  if (args.rows == 0) return;
  check_weight(args.keys);
  const Coding coding = args.keys.coding;
  const bool is_scaled = !args.keys.planes[kScales].empty();
  DSPACK_CHECK(coding == Coding::f32 || coding == Coding::bf16 || coding == Coding::f16 || coding == Coding::f8_e4m3,
               "keys of another type");
  DSPACK_CHECK(is_scaled == (coding == Coding::f8_e4m3), "keys have scales where they are FP8");
  DSPACK_CHECK(!is_scaled || (args.keys.block_out == 1 && args.keys.block_in >= args.keys.in), "a scale for each key");
  DSPACK_CHECK(args.heads > 0, "no heads");
  DSPACK_CHECK(args.every > 0, "keys that stand for no position");
  DSPACK_CHECK(positions_of(args.live, args.first_position, args.rows) / args.every <= args.keys.out,
               "position out of range");
  const uint64_t heads = product(args.rows, args.heads);
  check_floats(args.queries, product(product(heads, args.keys.in), kFloatBytes));
  check_floats(args.weights, product(heads, kFloatBytes));
  check_choice(args.choice, args.rows);
}

void check_mla_attend(const MlaAttendArgs& args) {
  if (args.rows == 0 || args.heads == 0) return;
  DSPACK_CHECK(args.latent_dim > 0 && args.latent_dim < kLargestDimension, "latent dimension out of range");
  DSPACK_CHECK(product(args.rows, args.heads) < kLargestDimension, "too many rows in one call");
  const uint64_t positions = positions_of(args.live, args.first_position, args.rows);
  DSPACK_CHECK(positions < kLargestDimension, "position out of range");
  const uint64_t latent_bytes = product(product(product(args.rows, args.heads), args.latent_dim), kFloatBytes);
  check_floats(args.query_latent, latent_bytes);
  check_floats(args.out, latent_bytes);
  check_cache(args.cache, args.cache_dtype, positions, {args.latent_dim, args.rope_dim});
  if (!args.choice.empty()) check_choice(args.choice, args.rows);
  if (args.rope_dim == 0) return;
  check_floats(args.query_rope,
               strided_bytes(args.rows, args.rope_row_stride, args.heads, args.rope_head_stride, args.rope_dim));
}

void check_window_attend(const WindowAttendArgs& args) {
  if (args.rows == 0 || args.heads == 0) return;
  DSPACK_CHECK(args.dim > 0 && args.dim < kLargestDimension, "dimension out of range");
  DSPACK_CHECK(product(args.rows, args.heads) < kLargestDimension, "too many rows in one call");
  const uint64_t positions = positions_of(args.live, args.first_position, args.rows);
  DSPACK_CHECK(positions < kLargestDimension, "position out of range");
  DSPACK_CHECK(args.window > 0 && sum(args.window, args.rows) - 1 <= args.ring_rows, "the ring is smaller");
  const uint64_t values = product(product(args.rows, args.heads), args.dim);
  check_floats(args.queries, product(values, kFloatBytes));
  check_floats(args.out, product(values, kFloatBytes));
  check_floats(args.sinks, product(args.heads, kFloatBytes));
  check_stored(args.ring, args.cache_dtype, product(args.ring_rows, args.dim));
  if (args.entries.empty()) return;
  DSPACK_CHECK(args.every > 0, "entries that stand for no position");
  check_stored(args.entries, args.cache_dtype, product(positions / args.every, args.dim));
  if (!args.choice.empty()) check_choice(args.choice, args.rows);
}

void check_compress(const CompressArgs& args) {
  check_same_shape(args.values, args.gates);
  if (args.values.rows == 0) return;
  const uint64_t width = product(args.dim, args.overlaps ? 2 : 1);
  DSPACK_CHECK(args.dim > 0 && args.values.cols == width, "values of another width");
  DSPACK_CHECK(args.every > 0, "entries that stand for no position");
  DSPACK_CHECK(args.rope_dim % 2 == 0 && args.rope_dim <= args.dim, "rotary dimension out of range");
  DSPACK_CHECK(product(args.every, args.overlaps ? 2 : 1) - 1 <= args.state_rows, "the state is smaller");
  check_floats(args.ape, product(product(args.every, width), kFloatBytes));
  check_floats(args.state, product(product(args.state_rows, 2 * width), kFloatBytes));
  check_floats(args.gain, product(args.dim, kFloatBytes));
  const uint64_t positions = positions_of(args.live, args.first_position, args.values.rows);
  check_floats(args.cos_sin, product(product(positions, args.rope_dim), kFloatBytes));
  check_stored(args.entries, args.dtype, product(positions / args.every, args.dim));
}

namespace {

void check_streams(const Rows& streams, const Rows& y, uint32_t count) {
  check_rows(streams);
  check_rows(y);
  DSPACK_CHECK(count > 0 && count <= kMaxStreams, "streams out of range");
  DSPACK_CHECK(streams.rows == y.rows && streams.cols == product(y.cols, count), "streams of another width");
}

}  // namespace

void check_read_streams(const ReadStreamsArgs& args) {
  check_streams(args.streams, args.y, args.count);
  const uint64_t width = args.rounds == 0 ? args.count : uint64_t{args.count} * (2 + args.count);
  check_floats(args.logits, product(product(args.y.rows, width), kFloatBytes));
  check_floats(args.base, product(width, kFloatBytes));
  check_floats(args.scale, (args.rounds == 0 ? 1 : 3) * kFloatBytes);
}

void check_join_streams(const JoinStreamsArgs& args) {
  check_streams(args.streams, args.y, args.count);
  check_floats(args.mix, product(args.y.rows, uint64_t{args.count} * (2 + args.count) * kFloatBytes));
}

void check_attend_expanded(const ExpandedAttendArgs& args) {
  check_rows(args.queries);
  if (args.queries.rows == 0 || args.heads == 0) return;
  DSPACK_CHECK(args.queries.cols == product(args.heads, sum(args.nope_dim, args.rope_dim)), "queries of other heads");
  DSPACK_CHECK(args.kv_b.out == product(args.heads, sum(args.nope_dim, args.value_dim)) &&
                   args.kv_b.in == args.latent_dim && args.latent_dim > 0,
               "keys and values of other heads");
  const uint64_t positions = sum(args.first_position, args.queries.rows);
  DSPACK_CHECK(positions < kLargestDimension, "position out of range");
  check_cache(args.cache, args.cache_dtype, positions, {args.latent_dim, args.rope_dim});
  check_floats(args.out, product(product(product(args.queries.rows, args.heads), args.value_dim), kFloatBytes));
}

void check_stored_rows(const Rows& rows, Slice stored, Dtype dtype, const LivePosition& live) {
  check_rows(rows);
  check_stored(stored, dtype, product(positions_of(live, 0, rows.rows), rows.cols));
}

void check_store_in_ring(const StoreInRingArgs& args) {
  check_rows(args.rows);
  (void)positions_of(args.live, args.first_position, args.rows.rows);
  DSPACK_CHECK(args.rows.rows <= args.ring_rows, "more rows than the ring has");
  check_stored(args.ring, args.dtype, product(args.ring_rows, args.rows.cols));
}

void check_stored_latents(const Rows& rows, Slice stored, LatentShape shape, const LivePosition& live) {
  check_rows(rows);
  DSPACK_CHECK(rows.cols == sum(shape.latent_dim, shape.rope_dim), "rows of another latent");
  check_cache(stored, Dtype::f8_e4m3, positions_of(live, 0, rows.rows), shape);
}

void check_stored_fp8_rows(const Rows& rows, Slice codes, Slice scales, const LivePosition& live) {
  check_rows(rows);
  const uint64_t positions = positions_of(live, 0, rows.rows);
  check_extent(codes, product(positions, rows.cols));
  check_floats(scales, product(positions, kFloatBytes));
}

void check_same_shape(const Rows& a, const Rows& b) {
  check_rows(a);
  check_rows(b);
  DSPACK_CHECK(a.rows == b.rows && a.cols == b.cols, "operands differ in shape");
}

void check_route(const RouterArgs& args) {
  DSPACK_CHECK(args.groups > 0 && args.experts > 0 && args.experts % args.groups == 0,
               "groups do not divide the experts");
  DSPACK_CHECK(args.groups_kept > 0 && args.groups_kept <= args.groups, "groups_kept out of range");
  DSPACK_CHECK(args.top_k > 0 && args.top_k <= args.experts / args.groups * args.groups_kept,
               "more experts wanted than the kept groups hold");
  const uint64_t rows = args.rows;
  check_floats(args.logits, product(product(rows, args.experts), kFloatBytes));
  check_floats(args.ids, product(product(rows, args.top_k), sizeof(uint32_t)));
  check_floats(args.weights, product(product(rows, args.top_k), kFloatBytes));
  if (!args.bias.empty()) check_floats(args.bias, product(args.experts, kFloatBytes));
  if (args.by_token.empty()) return;
  check_floats(args.by_token.experts, product(product(args.by_token.vocabulary, args.top_k), sizeof(uint32_t)));
  check_floats(args.by_token.tokens, product(rows, sizeof(uint32_t)));
}

void check_indexed_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows, IndexUse use) {
  check_rows(to);
  check_rows(from);
  DSPACK_CHECK(to.cols == from.cols, "rows differ in length");
  const Rows& indexed = use == IndexUse::gather ? from : to;
  const Rows& listed = use == IndexUse::gather ? to : from;
  DSPACK_CHECK(listed.rows == rows.size(), "one index a row");
  DSPACK_CHECK(std::ranges::all_of(rows, [&](uint32_t row) { return row < indexed.rows; }), "row index out of range");
}

void check_argmax(const Rows& x, Slice ids) {
  check_rows(x);
  DSPACK_CHECK(x.cols > 0, "the largest of nothing");
  check_floats(ids, product(x.rows, sizeof(uint32_t)));
}

void check_sample(const SampleArgs& args) {
  check_rows(args.logits);
  DSPACK_CHECK(args.logits.cols > 0 && args.logits.cols <= kMaxSampled, "nothing to draw from, or too much");
  check_extent(args.settings, sizeof(SampleSettings));
  check_extent(args.keys, product(args.logits.rows, sizeof(NoiseKey)));
  DSPACK_CHECK(args.settings.offset_bytes % sizeof(double) == 0 && args.keys.offset_bytes % sizeof(uint64_t) == 0,
               "64-bit values at an odd offset");
  check_floats(args.ids, product(args.logits.rows, sizeof(uint32_t)));
}

void check_experts(const ExpertsArgs& args, uint64_t scratch_bytes) {
  DSPACK_CHECK(args.table != nullptr && args.top_k > 0 && args.top_k <= args.table->size(), "no table for so many");
  check_same_shape(args.x, args.y);
  check_disjoint(args.x, args.y);
  const uint64_t routed = product(args.x.rows, args.top_k);
  check_floats(args.ids, product(routed, sizeof(uint32_t)));
  check_floats(args.weights, product(routed, kFloatBytes));
  check_extent(args.scratch, scratch_bytes);
}

void check_expert_parts(const ExpertPartsArgs& args, uint64_t scratch_bytes) {
  DSPACK_CHECK((args.table != nullptr || !args.experts.empty()) && args.top_k > 0, "no experts");
  check_rows(args.x);
  check_rows(args.parts);
  DSPACK_CHECK(args.parts.cols == args.x.cols, "rows differ in length");
  DSPACK_CHECK(args.parts.rows == product(args.x.rows, args.top_k), "top_k parts a row");
  for (const ExpertGroup& group : args.groups) {
    DSPACK_CHECK(group.entry < (args.table != nullptr ? args.table->size() : args.experts.size()), "no such expert");
    for (const uint32_t part : group.parts)
      DSPACK_CHECK(part < args.parts.rows, "no such part");
  }
  check_extent(args.scratch, scratch_bytes);
}

void check_held_experts(const HeldExpertsArgs& args, uint64_t scratch_bytes) {
  check_expert_parts({.table = args.table,
                      .x = args.x,
                      .groups = {},
                      .top_k = args.top_k,
                      .scratch = args.scratch,
                      .parts = args.parts},
                     scratch_bytes);
  check_floats(args.ids, product(args.parts.rows, sizeof(uint32_t)));
  for (const uint32_t entry : args.entries)
    DSPACK_CHECK(entry == kNoEntry || entry < args.table->size(), "no such expert");
}

void check_mlp(const MlpArgs& args) {
  check_linear(args.weights.gate, args.x, args.inner);
  check_linear(args.weights.up, args.x, args.scratch);
  check_linear(args.weights.down, args.inner, args.y);
}

void check_combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) {
  check_rows(y);
  check_rows(parts);
  DSPACK_CHECK(y.cols == parts.cols, "rows differ in length");
  const uint64_t count = product(y.rows, top_k);
  DSPACK_CHECK(parts.rows == count, "top_k parts a row");
  check_floats(weights, product(count, kFloatBytes));
}

}  // namespace dspack::kernels
