// Argument types of a queue's operations (ops.h): places in a device's memory and the shapes and parameters of each
// operation; those of attention are in attention_arguments.h.
// Threads: plain values. Lifetime: a Slice borrows its Buffer; host spans are borrowed as in ops.h. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "format/dtype.h"
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

// An operation's arguments and those of the kernel that a device runs for it are one struct, for both ways to name a
// place: callers know a buffer, a kernel has an address (`at` turns one into the other).
template <class T>
using SliceOf = Slice;
template <class T>
using AddressOf = T*;
[[nodiscard]] inline bool is_nowhere(const Slice& place) {
  return place.empty();
}
template <class T>
[[nodiscard]] bool is_nowhere(T* place) {
  return place == nullptr;
}

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
template <template <class> class To>
struct LivePositionAt {
  To<const uint32_t> value = {};
  uint32_t limit = 0;  // capacity in positions; the sum and the rows after it stay within it
  [[nodiscard]] bool empty() const { return is_nowhere(value); }
  /// `address` gives a slice's address in any type, and a weight's matrix.
  template <class Address>
  [[nodiscard]] LivePositionAt<AddressOf> at(const Address& address) const {
    return {.value = address(value), .limit = limit};
  }
};
using LivePosition = LivePositionAt<SliceOf>;

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

enum class ScoreFunction { sigmoid, softmax, sqrt_softplus };
enum class GroupScore { top2_sum, max };

/// Experts by token id instead of by score, and the tokens of a router's rows (DeepSeek-V4 inference/model.py, class
/// Gate, tid2eid).
template <template <class> class To>
struct ExpertsByTokenAt {
  To<const uint32_t> experts = {};  // [vocabulary, top_k]
  To<const uint32_t> tokens = {};   // [rows], each below `vocabulary`
  uint32_t vocabulary = 0;
  [[nodiscard]] bool empty() const { return is_nowhere(experts); }
  template <class Address>
  [[nodiscard]] ExpertsByTokenAt<AddressOf> at(const Address& address) const {
    return {.experts = address(experts), .tokens = address(tokens), .vocabulary = vocabulary};
  }
};

/// Group-limited top-k routing (DeepSeek-V3 inference/model.py, class Gate). The bias affects only the selection;
/// experts of groups that are not kept are excluded (minus infinity). Among equal scores the lower index wins.
template <template <class> class To>
struct RouterAt {
  To<float> logits = {};      // [rows, experts], overwritten with the scores
  To<const float> bias = {};  // [experts]; empty: none
  To<uint32_t> ids = {};      // out: [rows, top_k], best first, or in the order of the table
  To<float> weights = {};     // out: [rows, top_k], in the order of ids
  uint32_t rows = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  uint32_t groups = 1;
  uint32_t groups_kept = 1;
  ScoreFunction score = ScoreFunction::sigmoid;
  GroupScore group_score = GroupScore::top2_sum;
  bool normalise = true;  // divide the chosen scores by (their sum + 1e-20)
  float scale = 1;        // routed_scaling_factor
  ExpertsByTokenAt<To> by_token = {};

  template <class Address>
  [[nodiscard]] RouterAt<AddressOf> at(const Address& address) const {
    return {.logits = address(logits),
            .bias = address(bias),
            .ids = address(ids),
            .weights = address(weights),
            .rows = rows,
            .experts = experts,
            .top_k = top_k,
            .groups = groups,
            .groups_kept = groups_kept,
            .score = score,
            .group_score = group_score,
            .normalise = normalise,
            .scale = scale,
            .by_token = by_token.at(address)};
  }
};
using RouterArgs = RouterAt<SliceOf>;

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
  uint32_t rows = 0;  // most rows of one call of mla_attend or window_attend
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t positions = 0;  // capacity of a cache
  // For attend_expanded; 0: it is not called.
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;
  uint32_t window_dim = 0;  // values of a key of window_attend, which has these heads; 0: it is not called
  // For `choose`; 0: it is not called.
  uint32_t index_heads = 0;
  uint32_t index_dim = 0;
  uint32_t chosen = 0;  // Choice::most
};

}  // namespace dspack::kernels
