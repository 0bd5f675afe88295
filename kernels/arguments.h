// Argument types of a queue's operations (ops.h): places in a device's memory and the shapes and parameters of each
// operation.
// Threads: plain values. Lifetime: a Slice borrows its Buffer; host spans are borrowed as in ops.h. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "format/dtype.h"
#include "kernels/latent_rows.h"
#include "kernels/weight.h"

namespace dspack::kernels {

/// Memory of a device. A Slice or Weight that points into it gives the bytes a type and shape.
class Buffer {
 public:
  virtual ~Buffer() = default;
  [[nodiscard]] virtual uint64_t size_bytes() const = 0;
  /// The memory itself if the host can address it; else empty.
  [[nodiscard]] virtual std::span<std::byte> host() { return {}; }
};

/// A place in a buffer; borrows the buffer.
struct Slice {
  Buffer* buffer = nullptr;
  uint64_t offset_bytes = 0;
  [[nodiscard]] bool empty() const { return buffer == nullptr; }
  [[nodiscard]] Slice at(uint64_t more_bytes) const { return {buffer, offset_bytes + more_bytes}; }
};

/// FP32 activations: `rows` rows of `cols` values, `stride` values from the start of one row to the next.
struct Rows {
  Slice data;
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint32_t stride = 0;  // >= cols
};

/// A weight matrix [out, in] as it is stored.
using Weight = WeightAt<Slice>;

/// A position that is known when an operation runs but not when it is enqueued: the u32 at `value` is added to the
/// position in the arguments, so that one recorded Step serves every token.
struct LivePosition {
  Slice value;
  uint32_t limit = 0;  // capacity in positions; the sum and the rows after it stay within it
  [[nodiscard]] bool empty() const { return value.empty(); }
};

/// The pairs of values of a vector of `dim` that a rotary embedding rotates.
enum class RopePairs {
  neighbours,  // x[2k] and x[2k + 1] ("interleaved")
  halves,      // x[k] and x[k + dim / 2]
};

/// One of several products of the same input: y = weight . x.
struct Product {
  Weight weight;
  Rows y;
};

/// Rotary embedding of `rows` tokens, `heads` vectors each, rotated in place (DeepSeek-V3 inference/model.py). `data`
/// points at the first rotary value of the first head.
struct RopeArgs {
  Slice data;
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t dim = 0;             // rotary values per head, even
  uint32_t head_stride = 0;     // values between heads of a row
  uint32_t row_stride = 0;      // values between rows
  uint32_t first_position = 0;  // row r is at position first_position + r
  Slice cos_sin;                // FP32 [positions, dim/2, 2]: cosine, sine
  LivePosition live = {};       // added to first_position
  RopePairs pairs = RopePairs::neighbours;
  bool inverse = false;  // rotates by the negated angles
};

/// Positions that queries attend to instead of all positions up to their own; ascending and unique.
struct Choice {
  Slice ids;          // u32 [rows, most]; row r uses its first counts[r], each a position in the cache
  Slice counts;       // u32 [rows], each at least 1 and at most `most`
  uint32_t most = 0;  // columns of ids
  [[nodiscard]] bool empty() const { return ids.empty(); }
};

/// The lightning indexer of DeepSeek's sparse attention (DeepSeek-V3.2-Exp inference/model.py, class Indexer; the
/// technical report, section 1): each row chooses, among the positions up to its own, the `choice.most` with the
/// largest
///   score(r, j) = sum over h of weights[r, h] * max(queries[r, h] . keys[j], 0)
/// or all of them if there are no more. Among equal scores the lowest position wins; -0 equals 0; a NaN counts as the
/// largest.
/// If a key stands for `every` positions (DeepSeek-V4's compressed entries), a row chooses among the keys whose
/// positions are all at or before its own; there may be none.
struct ChooseArgs {
  Slice queries;  // FP32 [rows, heads, keys.in]
  Slice weights;  // FP32 [rows, heads]
  Weight keys;    // [positions in the cache, dim], as f32, bf16, f16, or f8_e4m3 with a scale for each row
  Choice choice;  // out
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t first_position = 0;  // row r is at position first_position + r
  LivePosition live = {};       // added to first_position
  uint32_t every = 1;           // positions that a key stands for
};

/// Attention over the latent cache (absorbed MLA: multi-query attention with keys [latent | rope], values [latent]).
/// Query row r sees cache rows 0 .. first_position + r, or only the positions of its choice; a choice of all positions
/// gives the same bits as no choice. out[r, h] = softmax(q[r,h] . k * scale) . latent.
struct MlaAttendArgs {
  Slice query_latent;  // FP32 [rows, heads, latent_dim]
  Slice query_rope;    // FP32, head h of row r at r * rope_row_stride + h * rope_head_stride, rope_dim values
  Slice cache;         // [positions] rows of cache_dtype (latent_rows.h), decoded exactly; FP8: 16-byte aligned
  Slice out;           // FP32 [rows, heads, latent_dim]
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t rope_row_stride = 0;
  uint32_t rope_head_stride = 0;
  uint32_t first_position = 0;
  float scale = 0;
  Dtype cache_dtype = Dtype::f32;  // f32, bf16, f16 or f8_e4m3
  LivePosition live = {};          // added to first_position
  Choice choice = {};              // empty: all positions
};

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
  float scale = 0;
  Dtype cache_dtype = Dtype::f32;  // f32, bf16 or f16
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
};

/// Computes a block's input from a row's residual streams (manifold-constrained hyper-connections; DeepSeek-V4
/// inference/model.py, Block.hc_pre). With m = logits / sqrt(mean(streams^2) + norm_epsilon), n streams:
///   pre_j = sigmoid(scale[0] m_j + base_j) + epsilon,  post_j = 2 sigmoid(scale[1] m_{n+j} + base_{n+j})
///   C_jk = softmax over k of (scale[2] m_{2n+nj+k} + base_{2n+nj+k}), + epsilon; then C is made doubly stochastic:
///   its columns are divided by (their sums + epsilon), then rounds - 1 times its rows and its columns
/// y = sum over j of pre_j stream_j. With rounds = 0 only pre is computed (the end of the model).
struct ReadStreamsArgs {
  Rows streams;        // [rows, n * y.cols]
  Slice logits;        // FP32 [rows, 2 n + n n], or [rows, n]; overwritten with pre, post and C
  Slice base;          // FP32 [columns of logits]
  Slice scale;         // FP32 [3], or [1]
  Rows y;              // [rows, hidden]
  uint32_t count = 0;  // n, at most kMaxStreams
  uint32_t rounds = 0;
  float norm_epsilon = 0;
  float epsilon = 0;
};
inline constexpr uint32_t kMaxStreams = 8;

/// Adds a block's output y to the streams (Block.hc_post): stream'_k = post_k y + sum over j of C_jk stream_j.
struct JoinStreamsArgs {
  Rows streams;        // [rows, n * y.cols], changed in place
  Slice mix;           // FP32 [rows, 2 n + n n]: ReadStreamsArgs::logits after the operation
  Rows y;              // [rows, hidden]
  uint32_t count = 0;  // n
};

/// Multiplies head by head with a part of the rows of one stored matrix: head h uses the rows
/// [h * head_rows + first_row, h * head_rows + first_row + rows_used) of `weight`. Absorbed MLA thus uses kv_b_proj
/// [heads * (nope + v), latent] without expanding it.
struct HeadLinearArgs {
  Weight weight;
  uint32_t heads = 0;
  uint32_t head_rows = 0;  // nope + v
  uint32_t first_row = 0;  // 0 for the key part, nope for the value part
  uint32_t rows_used = 0;  // nope or v
  Slice x;                 // FP32; see head_linear and head_linear_transposed
  uint32_t x_row_stride = 0;
  uint32_t x_head_stride = 0;
  Slice y;
  uint32_t y_row_stride = 0;
  uint32_t y_head_stride = 0;
  uint32_t rows = 0;  // tokens
};

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

enum class ScoreFunction { sigmoid, softmax, sqrt_softplus };
enum class GroupScore { top2_sum, max };

/// Group-limited top-k routing (DeepSeek-V3 inference/model.py, class Gate). The bias affects only the selection;
/// experts of groups that are not kept are excluded (minus infinity). Among equal scores the lower index wins.
struct RouterArgs {
  Slice logits;   // FP32 [rows, experts], overwritten with the scores
  Slice bias;     // FP32 [experts]; empty: none
  Slice ids;      // out: u32 [rows, top_k], best first
  Slice weights;  // out: FP32 [rows, top_k], in the order of ids
  uint32_t rows = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  uint32_t groups = 1;
  uint32_t groups_kept = 1;
  ScoreFunction score = ScoreFunction::sigmoid;
  GroupScore group_score = GroupScore::top2_sum;
  bool normalise = true;       // divide the chosen scores by (their sum + 1e-20)
  float scale = 1;             // routed_scaling_factor
  bool ids_are_given = false;  // `ids` is an input; only weights are computed
};

/// Limit of a gated MLP whose values are not clamped.
inline constexpr float kNoLimit = std::numeric_limits<float>::infinity();

/// The matrices of one expert: gate and up [inner, hidden], down [hidden, inner].
struct ExpertMatrices {
  Weight gate, up, down;
  /// swiglu_limit: the gate is at most this before silu, and its factor lies within [-limit, limit].
  float limit = kNoLimit;
};

/// Addresses of one layer's experts, for the device to look up. Borrows their buffers.
class ExpertTable {
 public:
  virtual ~ExpertTable() = default;
  [[nodiscard]] virtual uint32_t size() const = 0;
};

/// Shape of the calls that one scratch buffer serves, for Device::experts_scratch_bytes.
struct ExpertsShape {
  uint32_t hidden = 0;
  uint32_t inner = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  uint32_t rows = 0;        // most tokens of one call
  bool parts_only = false;  // only Queue::run_expert_parts is called, not run_experts
};

/// All routed experts of one layer: y[t] = sum over slot < top_k, in this order, of
/// weights[t, slot] * down(silu(gate(x[t])) * up(x[t])) with the matrices of expert ids[t, slot].
struct ExpertsArgs {
  const ExpertTable* table = nullptr;
  Rows x;         // [tokens, hidden]
  Slice ids;      // u32 [tokens, top_k], each below table->size()
  Slice weights;  // FP32 [tokens, top_k]
  uint32_t top_k = 0;
  Slice scratch;  // Device::experts_scratch_bytes for at least these tokens, 256-byte aligned
  Rows y;         // [tokens, hidden]; not x
};

/// A gated MLP: y = down(silu(gate x) * (up x)), with the limit of its matrices.
struct MlpArgs {
  ExpertMatrices weights;
  Rows x;               // [rows, hidden]
  Rows inner, scratch;  // [rows, inner] each; overwritten, no other operand
  Rows y;               // [rows, hidden]; not x
};

/// Everything in a mixture-of-experts block after its router.
struct MoeArgs {
  ExpertsArgs experts;
  const MlpArgs* shared = nullptr;  // its input is experts.x; null: no shared expert. Borrowed for the call
  Rows residual;                    // [tokens, hidden]; neither x nor y of the two above
};

/// Assignments of a call to one expert, each as token * top_k + slot, ascending.
struct ExpertGroup {
  uint32_t entry = 0;  // index in the table, or in `experts`
  std::span<const uint32_t> parts;
};

/// Runs some of a layer's experts, for layers whose experts are not all in memory at once: for every assignment `part`
/// of a group, parts[part] = down(silu(gate(x[t])) * up(x[t])) with t = part / top_k. Other rows of `parts` are
/// unchanged. A row has the same bits however it is grouped into groups and calls; `combine` sums the rows as
/// `run_experts` does.
struct ExpertPartsArgs {
  const ExpertTable* table = nullptr;
  std::span<const ExpertMatrices> experts = {};  // instead of a table, on a device with is_host()
  Rows x;                                        // [tokens, hidden]
  std::span<const ExpertGroup> groups;           // borrowed for the call; no part appears twice
  uint32_t top_k = 0;
  Slice scratch;  // Device::experts_scratch_bytes for at least these tokens, 256-byte aligned
  Rows parts;     // [tokens * top_k, hidden]; not x, not in scratch
};

/// In HeldExpertsArgs::entries: the expert is not in the table.
inline constexpr uint32_t kNoEntry = UINT32_MAX;

/// Runs those of the router's chosen experts that are in a table. The device selects them itself, before the host knows
/// the routes. For every assignment whose expert e = ids[part] has an entry, parts[part] is computed as by
/// ExpertPartsArgs, bit for bit, with the matrices of table entry entries[e]. Other rows of `parts` are unchanged.
struct HeldExpertsArgs {
  const ExpertTable* table = nullptr;
  std::span<const uint32_t> entries;  // by expert; borrowed for the call
  Rows x;                             // [tokens, hidden]
  Slice ids;                          // u32 [tokens, top_k], each below entries.size(); may be the host's memory
  uint32_t top_k = 0;
  Slice scratch;  // as in ExpertPartsArgs
  Rows parts;     // as in ExpertPartsArgs
};

/// Sampling settings (steps: runtime/generate/sampler.h). They lie in device memory, so that one recorded Step serves
/// any settings.
struct SampleSettings {
  double temperature = 1;  // finite, > 0
  double top_p = 1;        // > 0, <= 1; 1: all
  double min_p = 0;        // >= 0, <= 1; 0: all
  uint32_t top_k = 0;      // 0: all
  uint32_t unused = 0;
  [[nodiscard]] bool operator==(const SampleSettings&) const = default;
};

/// Draws one token for every row, using the noise of the row's position. The result is bit-exact (sample_weights.h,
/// sample_noise.h): every device chooses the same token for the same logits, settings and key.
struct SampleArgs {
  Rows logits;     // at least one column, at most kMaxSampled
  Slice settings;  // a SampleSettings
  Slice keys;      // NoiseKey [rows]
  Slice ids;       // out: u32 [rows]; kNoToken where a logit is NaN or +infinity, or none is above -infinity
};
inline constexpr uint32_t kNoToken = UINT32_MAX;

/// The largest calls that a queue should expect.
struct WorkspaceShape {
  uint32_t rows = 0;  // most rows of one call of mla_attend
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t positions = 0;  // capacity of a cache
  // For attend_expanded; 0: it is not called.
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;
  // For `choose`; 0: it is not called.
  uint32_t index_heads = 0;
  uint32_t index_dim = 0;
  uint32_t chosen = 0;  // Choice::most
};

}  // namespace dspack::kernels
