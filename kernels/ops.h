// The arithmetic that the models need, on a queue and opaque buffers, so that CPU and CUDA look alike.
//
// A Device makes Buffers and Queues. A Queue is an ordered list of operations: each sees the effects of the ones before
// it. An operation may return before it has run; `synchronize` waits for all of them. The CPU device runs every
// operation at once and in full. Queues of one device run concurrently; `mark` and `wait` order operations of different
// queues.
// Threads: a Device is thread-safe; a Queue belongs to one thread at a time. Lifetime: a Slice borrows its Buffer; host
// spans are borrowed until the next `synchronize`, or until an event after the operation is reached, index spans only
// for the call. Errors: allocation returns a Result (budget); shapes that do not fit are programming errors
// (DSPACK_CHECK), since the loader has checked the checkpoint.
//
// Exactness (the contract of precision mode `exact`): activations and accumulation are FP32, small weight types are
// decoded without rounding, and the value of an output row depends on its input row alone: not on the number of rows
// in the call, the thread count, or what else was computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "format/base/result.h"
#include "format/dtype.h"
#include "kernels/latent_rows.h"
#include "kernels/weight.h"

namespace dspack::kernels {

/// Memory of a device. What the bytes mean is said by the Slice or Weight that points into it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  [[nodiscard]] virtual uint64_t size_bytes() const = 0;
  /// The memory itself, where the host can address it; else empty.
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

/// A position that is known when an operation runs and not yet when it is enqueued: the u32 at `value`, added to what
/// the arguments say. So one recorded Step serves every token.
struct LivePosition {
  Slice value;
  uint32_t limit = 0;  // positions that there are: the sum and the rows behind it stay within
  [[nodiscard]] bool empty() const { return value.empty(); }
};

/// Which values of a vector of `dim` a rotary embedding turns together.
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
  uint32_t first_position = 0;  // row r stands at position first_position + r
  Slice cos_sin;                // FP32 [positions, dim/2, 2]: cosine, sine
  LivePosition live = {};       // added to first_position
  RopePairs pairs = RopePairs::neighbours;
};

/// Positions that queries attend to in place of all up to their own, ascending and each once.
struct Choice {
  Slice ids;          // u32 [rows, most], of row r the first counts[r]; each a position that is in the cache
  Slice counts;       // u32 [rows], each at least 1 and at most `most`
  uint32_t most = 0;  // columns of ids
  [[nodiscard]] bool empty() const { return ids.empty(); }
};

/// The lightning indexer of DeepSeek's sparse attention (DeepSeek-V3.2-Exp inference/model.py, class Indexer; the
/// technical report, section 1): of the positions up to its own each row chooses the `choice.most` with the largest
///   score(r, j) = sum over h of weights[r, h] * max(queries[r, h] . keys[j], 0)
/// and the lowest of equals; all of them where there are no more. -0 equals 0; a NaN counts as the largest.
struct ChooseArgs {
  Slice queries;  // FP32 [rows, heads, keys.in]
  Slice weights;  // FP32 [rows, heads]
  Weight keys;    // [positions that there are, dim], as f32, bf16, f16, or f8_e4m3 with a scale for each row
  Choice choice;  // out
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t first_position = 0;  // row r stands at position first_position + r
  LivePosition live = {};       // added to first_position
};

/// Attention over the latent cache (absorbed MLA: multi-query attention with keys [latent | rope], values [latent]).
/// Row r of the queries sees cache rows 0 .. first_position + r, or those of its choice alone; where that is all of
/// them it gives the same bits. out[r, h] = softmax(q[r,h] . k * scale) . latent.
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

/// Attention over the latent cache with a key and a value of each head, made anew of the latents (DeepSeek-V3
/// inference/model.py, class MLA, attn_impl "naive"): for every head h, with [k | v](j, h) = kv_b's rows of h .
/// latent(j), out[r, h] = softmax over j <= first_position + r of (queries[r, h] . [k(j, h) | rope(j)] * scale) . v(j,
/// h).
struct ExpandedAttendArgs {
  Weight kv_b;   // [heads * (nope_dim + value_dim), latent_dim]
  Rows queries;  // [rows, heads * (nope_dim + rope_dim)], rotated
  Slice cache;   // as of MlaAttendArgs
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

/// Multiplies, head by head, with a part of the rows of one stored matrix: head h owns the rows
/// [h * head_rows + first_row, h * head_rows + first_row + rows_used) of `weight`. This is how absorbed MLA uses
/// kv_b_proj [heads * (nope + v), latent] without ever expanding it.
struct HeadLinearArgs {
  Weight weight;
  uint32_t heads = 0;
  uint32_t head_rows = 0;  // nope + v
  uint32_t first_row = 0;  // 0 for the key part, nope for the value part
  uint32_t rows_used = 0;  // nope or v
  Slice x;                 // FP32; see the two operations
  uint32_t x_row_stride = 0;
  uint32_t x_head_stride = 0;
  Slice y;
  uint32_t y_row_stride = 0;
  uint32_t y_head_stride = 0;
  uint32_t rows = 0;  // tokens
};

/// What is left to do with the latents of some positions once they have been projected: norms, rotation, and the cache.
struct LatentsArgs {
  Rows rows;  // [rows, latent_dim + rope_dim]: latent, then rotary key; overwritten
  LatentShape shape;
  Slice gain;         // FP32 [latent_dim]
  Rows query;         // latents of the queries, as many rows, normalised in place; no columns: there are none
  Slice query_gain;   // FP32 [query.cols]
  float epsilon = 0;  // of both norms
  RopeArgs rope;      // of the rotary keys in `rows`
  Slice cache;        // of the first row, at rope.first_position; empty: the rows are where they belong
  Dtype cache_dtype = Dtype::f32;  // f32, bf16, f16 or f8_e4m3
};

enum class ScoreFunction { sigmoid, softmax };
enum class GroupScore { top2_sum, max };

/// Group-limited top-k routing (DeepSeek-V3 inference/model.py, class Gate). The bias takes part in the selection only;
/// groups that are not kept are excluded (minus infinity). Equal scores: the lower index wins.
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
  bool normalise = true;  // divide the chosen scores by (their sum + 1e-20)
  float scale = 1;        // routed_scaling_factor
};

/// The matrices of one expert: gate and up [inner, hidden], down [hidden, inner].
struct ExpertMatrices {
  Weight gate, up, down;
};

/// Where the experts of one layer lie, for the device to look up. Borrows their buffers.
class ExpertTable {
 public:
  virtual ~ExpertTable() = default;
  [[nodiscard]] virtual uint32_t size() const = 0;
};

/// What Device::experts_scratch_bytes needs to know of the calls that a scratch buffer serves.
struct ExpertsShape {
  uint32_t hidden = 0;
  uint32_t inner = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  uint32_t rows = 0;        // tokens of one call at most
  bool parts_only = false;  // Queue::run_expert_parts alone, not run_experts
};

/// All routed experts of one layer: y[t] = sum over slot < top_k, in this order, of
/// weights[t, slot] * down(silu(gate(x[t])) * up(x[t])) with the matrices of expert ids[t, slot].
struct ExpertsArgs {
  const ExpertTable* table = nullptr;
  Rows x;         // [tokens, hidden]
  Slice ids;      // u32 [tokens, top_k], each below table->size()
  Slice weights;  // FP32 [tokens, top_k]
  uint32_t top_k = 0;
  Slice scratch;  // of Device::experts_scratch_bytes for at least so many tokens, 256-byte aligned
  Rows y;         // [tokens, hidden]; not x
};

/// A gated MLP: y = down(silu(gate x) * (up x)).
struct MlpArgs {
  ExpertMatrices weights;
  Rows x;               // [rows, hidden]
  Rows inner, scratch;  // [rows, inner] each; overwritten, no other operand
  Rows y;               // [rows, hidden]; not x
};

/// All that a mixture-of-experts block does behind its router.
struct MoeArgs {
  ExpertsArgs experts;
  const MlpArgs* shared = nullptr;  // of experts.x; null: there is none. Borrowed for the call
  Rows residual;                    // [tokens, hidden]; neither x nor y of the two
};

/// Of one expert: which assignments of a call go to it, as token * top_k + slot, ascending.
struct ExpertGroup {
  uint32_t entry = 0;  // in the table, or of `experts`
  std::span<const uint32_t> parts;
};

/// Some of a layer's experts by themselves, where they are not all at hand at once: for every assignment `part` of a
/// group, parts[part] = down(silu(gate(x[t])) * up(x[t])) with t = part / top_k. Other rows of `parts` stay as they
/// are. A row is the same, bit for bit, in whatever groups and calls it is computed, and `combine` adds the rows up as
/// `run_experts` does.
struct ExpertPartsArgs {
  const ExpertTable* table = nullptr;
  std::span<const ExpertMatrices> experts = {};  // in place of a table, on a host's device
  Rows x;                                        // [tokens, hidden]
  std::span<const ExpertGroup> groups;           // borrowed for the call; no part appears twice
  uint32_t top_k = 0;
  Slice scratch;  // of Device::experts_scratch_bytes for at least so many tokens, 256-byte aligned
  Rows parts;     // [tokens * top_k, hidden]; neither x nor in scratch
};

/// A point in a queue's work, reached when all that was enqueued before it has run.
class Event {
 public:
  virtual ~Event() = default;
  [[nodiscard]] virtual bool is_reached() = 0;
  /// Returns when it is reached.
  virtual void wait() = 0;
  /// By the device's clock, from when `earlier` was reached, which is of the same device. Both are reached.
  [[nodiscard]] virtual double seconds_since(const Event& earlier) const = 0;
};

/// How tokens are drawn (runtime/generate/sampler.h has the steps). It lies in device memory, so that one recorded Step
/// serves whatever is asked for.
struct SampleSettings {
  double temperature = 1;  // finite, > 0
  double top_p = 1;        // > 0, <= 1; 1: all
  double min_p = 0;        // >= 0, <= 1; 0: all
  uint32_t top_k = 0;      // 0: all
  uint32_t unused = 0;
  [[nodiscard]] bool operator==(const SampleSettings&) const = default;
};

/// One token of every row, by one number of each. Which one is settled to the last bit (sample_weights.h): for the same
/// logits, settings and number every device chooses the same.
struct SampleArgs {
  Rows logits;     // at least one column, at most kMostSampled
  Slice settings;  // a SampleSettings
  Slice uniforms;  // double [rows], in [0, 1)
  Slice ids;       // out: u32 [rows]; kNoToken where a logit is NaN or +infinity, or none is above -infinity
};
inline constexpr uint32_t kNoToken = UINT32_MAX;

/// The largest calls that a queue is to expect.
struct WorkspaceShape {
  uint32_t rows = 0;  // of one call of mla_attend
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t positions = 0;  // of a cache
  // Of attend_expanded; 0: it is not called.
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;
  // Of `choose`; 0: it is not called.
  uint32_t index_heads = 0;
  uint32_t index_dim = 0;
  uint32_t chosen = 0;  // Choice::most
};

/// Operations that were recorded once and run as one (a CUDA graph).
class Step {
 public:
  virtual ~Step() = default;
};

class Queue {
 public:
  virtual ~Queue() = default;

  /// What calls are to come. While none is larger, the queue takes no more of the device's memory for itself than
  /// Device::workspace_bytes says; a larger one works, and takes more. Nothing is taken yet.
  virtual void expect(const WorkspaceShape& /*largest*/) {}

  virtual void upload(Slice to, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, Slice from) = 0;
  /// One of the places may be the host's memory that the device addresses (allocate_host), borrowed like a host span:
  /// the device then reads or writes it itself, behind no upload or download of another queue. For few bytes.
  virtual void copy(Slice to, Slice from, uint64_t bytes) = 0;
  virtual void synchronize() = 0;
  /// What the device could not do, and no operation can say: it is lost, or has no memory left. From then on it runs
  /// nothing more: what is enqueued is dropped, downloads leave their memory as it was, events are reached. So whoever
  /// uses results on the host asks after synchronising.
  [[nodiscard]] virtual std::optional<Error> failure() const { return std::nullopt; }
  /// Synchronises. Errors: the device's failure.
  [[nodiscard]] Result<void> finish() {
    synchronize();
    if (const auto failed = failure()) return *failed;
    return {};
  }
  /// What was enqueued so far. Not while recording.
  [[nodiscard]] virtual std::shared_ptr<Event> mark() = 0;
  /// What is enqueued from now on runs after the event, which may be of another queue of this device. Not while
  /// recording.
  virtual void wait(const Event& event) = 0;

  /// y[r, o] = sum over i of x[r, i] * weight[o, i]. x [rows, in], y [rows, out].
  virtual void linear(const Weight& weight, const Rows& x, const Rows& y) = 0;

  /// The first half of a gated MLP: y[r, o] = silu(gate[o] . x[r]) * (up[o] . x[r]), with the bits of the two products
  /// and silu_multiply. gate and up [inner, in]; `scratch` [rows, inner] is overwritten and no other operand.
  virtual void gated_linear(const Weight& gate, const Weight& up, const Rows& x, const Rows& y, const Rows& scratch) {
    linear(gate, x, y);
    linear(up, x, scratch);
    silu_multiply(y, scratch);
  }

  /// Key absorption, transposed: y[r, h, j] = sum over d < rows_used of x[r, h, d] * weight[row(h, d), j], j < in.
  virtual void head_linear_transposed(const HeadLinearArgs& args) = 0;
  /// Value projection: y[r, h, d] = sum over j < in of x[r, h, j] * weight[row(h, d), j], d < rows_used.
  virtual void head_linear(const HeadLinearArgs& args) = 0;

  /// y = x / sqrt(mean(x^2) + epsilon) * gain. gain FP32 [cols]. y may be x.
  virtual void rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) = 0;
  /// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * gain + bias. gain, bias FP32 [cols]. y may be x. Mean and
  /// variance (of all values, not of one fewer) are summed in double precision, for rows of a few hundred values.
  virtual void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  virtual void choose(const ChooseArgs& args) = 0;
  virtual void mla_attend(const MlaAttendArgs& args) = 0;

  /// gate = silu(gate) * up, elementwise.
  virtual void silu_multiply(const Rows& gate, const Rows& up) = 0;
  /// y += x, elementwise.
  virtual void add(const Rows& y, const Rows& x) = 0;

  virtual void route(const RouterArgs& args) = 0;

  virtual void run_experts(const ExpertsArgs& args) = 0;
  virtual void run_expert_parts(const ExpertPartsArgs& args) = 0;

  /// Stores rows one behind the other as `dtype` (f32, bf16, f16), each value rounded to the nearest, ties to even.
  /// With a live position the first goes so many rows behind `to`.
  virtual void store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live = {}) = 0;

  /// Stores rows [latent | rope] one behind the other in FP8 (latent_rows.h); `to` is 16-byte aligned. Codes are
  /// rounded to the nearest, ties to even, and every device stores the same bits (but of a NaN in the rotary key).
  /// With a live position the first goes so many rows behind `to`.
  virtual void store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live = {}) = 0;

  /// Stores rows one behind the other in FP8 (E4M3), each with one scale, as latent_rows.h makes those of a tile,
  /// whatever its length: codes [rows, cols], scales FP32 [rows]. With a live position the first goes so many rows
  /// behind.
  virtual void store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live = {}) = 0;

  /// to[i] = from[rows[i]] for every i.
  virtual void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) = 0;
  /// to[rows[i]] = from[i] for every i; no row appears twice.
  virtual void scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) = 0;
  /// y[r] = sum over slot < top_k, in this order, of weights[r, slot] * parts[r * top_k + slot].
  virtual void combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) = 0;

  /// ids[r] (u32) = the index of the largest value of row r, the lowest of equals; kNoToken where a value is NaN or
  /// +infinity, or none is above -infinity (as `sample`).
  virtual void argmax(const Rows& x, Slice ids) = 0;
  virtual void sample(const SampleArgs& args) = 0;

  // What neighbours in a model's layer do together, each with the bits of the operations that it stands for in
  // precision `exact`. A device that has less to do where they are one (a launch, a round trip) overrides them.

  /// Products of one input.
  virtual void linear_each(std::span<const Product> products, const Rows& x) {
    for (const Product& product : products)
      linear(product.weight, x, product.y);
  }
  /// y += weight . x. `scratch` is like y and may be overwritten; no other operand.
  virtual void add_linear(const Weight& weight, const Rows& x, const Rows& y, const Rows& scratch) {
    linear(weight, x, scratch);
    add(y, scratch);
  }
  /// rms_norm, whose result, as it is, products with these weights are about to take.
  virtual void rms_norm_for(std::span<const Weight> /*readers*/, const Rows& x, Slice gain, float epsilon,
                            const Rows& y) {
    rms_norm(x, gain, epsilon, y);
  }
  /// `query_reader`: the weight that takes the queries' latents next; null: none does.
  virtual void finish_latents(const LatentsArgs& args, const Weight* /*query_reader*/) {
    Rows latent = args.rows;
    latent.cols = args.shape.latent_dim;
    rms_norm(latent, args.gain, args.epsilon, latent);
    rope(args.rope);
    if (args.query.cols != 0) rms_norm(args.query, args.query_gain, args.epsilon, args.query);
    if (args.cache.empty()) return;
    LivePosition live = args.rope.live;
    if (!live.empty()) live.limit -= args.rope.first_position;  // `cache` counts it already
    if (args.cache_dtype == Dtype::f8_e4m3) return store_latents(args.cache, args.shape, args.rows, live);
    store_rows(args.cache, args.cache_dtype, args.rows, live);
  }
  /// rope, and key absorption of other values of the same queries.
  virtual void absorb(const RopeArgs& rotated, const HeadLinearArgs& absorbed) {
    rope(rotated);
    head_linear_transposed(absorbed);
  }
  /// The queries' rope, and attention with a key and a value of each head, where this queue takes less time for it than
  /// for absorbed attention with its two products: of many rows, and not in precision `exact`, since a row's bits
  /// would hang on their number. False: it does not; nothing was enqueued.
  [[nodiscard]] virtual bool attend_expanded(const RopeArgs& /*rotated*/, const ExpandedAttendArgs& /*args*/) {
    return false;
  }
  /// args.logits = router . x, and route.
  virtual void route_rows(const Weight& router, const Rows& x, const RouterArgs& args) {
    linear(router, x, {.data = args.logits, .rows = args.rows, .cols = args.experts, .stride = args.experts});
    route(args);
  }
  virtual void run_mlp(const MlpArgs& args) {
    gated_linear(args.weights.gate, args.weights.up, args.x, args.inner, args.scratch);
    linear(args.weights.down, args.inner, args.y);
  }
  /// residual += what run_mlp leaves in args.y, which may be overwritten.
  virtual void add_mlp(const MlpArgs& args, const Rows& residual) {
    run_mlp(args);
    add(residual, args.y);
  }
  /// residual += experts + shared expert. experts.y, and what the shared expert writes, may be overwritten.
  virtual void add_moe(const MoeArgs& args) {
    run_experts(args.experts);
    if (args.shared != nullptr) {
      run_mlp(*args.shared);
      add(args.experts.y, args.shared->y);
    }
    add(args.residual, args.experts.y);
  }

  /// Calls `operations`; what it enqueues on this queue is recorded and not run. It uploads and downloads nothing and
  /// does not synchronise. Null: this device does not record, and nothing was called.
  [[nodiscard]] virtual std::unique_ptr<Step> record(const std::function<void()>& operations) = 0;
  /// Enqueues what was recorded on this queue. The buffers that it used must still be there.
  virtual void run(Step& step) = 0;
};

/// Memory of a device, in bytes; 0: unknown.
struct DeviceMemory {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  /// What runs the operations, for people: "cpu avx512, 8 threads".
  [[nodiscard]] virtual std::string_view description() const = 0;
  /// Uninitialised memory, aligned to at least 64 bytes. Errors: budget.
  [[nodiscard]] virtual Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes) = 0;
  /// Memory of the host, page-aligned, from and to which this device copies without a detour and while it computes
  /// (pinned), and which it addresses itself (Queue::copy). Errors: budget.
  [[nodiscard]] virtual Result<std::unique_ptr<Buffer>> allocate_host(uint64_t bytes) = 0;
  [[nodiscard]] virtual std::unique_ptr<Queue> make_queue() = 0;
  /// Whether buffers lie in the host's memory (Buffer::host).
  [[nodiscard]] virtual bool is_host() const = 0;
  [[nodiscard]] virtual DeviceMemory memory() const = 0;
  /// A table of experts that lie in this device's buffers. Errors: unsupported (experts of one layer that differ in
  /// shape or in how they are stored), budget.
  [[nodiscard]] virtual Result<std::unique_ptr<ExpertTable>> make_expert_table(
      std::span<const ExpertMatrices> experts) = 0;
  [[nodiscard]] virtual uint64_t experts_scratch_bytes(const ExpertsShape& shape) const = 0;
  /// Most that a queue takes of this device's memory besides buffers (Queue::expect). Grows with every number of the
  /// shape.
  [[nodiscard]] virtual uint64_t workspace_bytes(const WorkspaceShape& /*largest*/) const { return 0; }
};

}  // namespace dspack::kernels
