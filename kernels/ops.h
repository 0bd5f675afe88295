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

#include "format/base/check.h"
#include "format/base/result.h"
#include "kernels/arguments.h"

namespace dspack::kernels {

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
  /// What is enqueued from now on runs after the event, which may be of another queue, also of another device of this
  /// kind. Not while recording.
  virtual void wait(const Event& event) = 0;

  /// y[r, o] = sum over i of x[r, i] * weight[o, i]. x [rows, in], y [rows, out].
  virtual void linear(const Weight& weight, const Rows& x, const Rows& y) = 0;

  /// The first half of a gated MLP: y[r, o] = silu(gate[o] . x[r]) * (up[o] . x[r]), with the bits of the two products
  /// and silu_multiply. gate and up [inner, in]; `scratch` [rows, inner] is overwritten and no other operand.
  virtual void gated_linear(const Weight& gate, const Weight& up, const Rows& x, const Rows& y, const Rows& scratch,
                            float limit = kNoLimit) {
    linear(gate, x, y);
    linear(up, x, scratch);
    silu_multiply(y, scratch, limit);
  }

  /// Key absorption, transposed: y[r, h, j] = sum over d < rows_used of x[r, h, d] * weight[row(h, d), j], j < in.
  virtual void head_linear_transposed(const HeadLinearArgs& args) = 0;
  /// Value projection: y[r, h, d] = sum over j < in of x[r, h, j] * weight[row(h, d), j], d < rows_used.
  virtual void head_linear(const HeadLinearArgs& args) = 0;

  /// y = x / sqrt(mean(x^2) + epsilon) * gain. gain FP32 [cols]; empty: 1. y may be x.
  virtual void rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) = 0;
  /// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * gain + bias. gain, bias FP32 [cols]. y may be x. Mean and
  /// variance (of all values, not of one fewer) are summed in double precision, for rows of a few hundred values.
  virtual void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  virtual void choose(const ChooseArgs& args) = 0;
  virtual void mla_attend(const MlaAttendArgs& args) = 0;

  // DeepSeek-V4's attention and residual streams. Precondition: Device::has_compressed_attention.
  virtual void window_attend(const WindowAttendArgs& /*args*/) { DSPACK_CHECK(false, "this device has no window"); }
  virtual void compress(const CompressArgs& /*args*/) { DSPACK_CHECK(false, "this device compresses nothing"); }
  virtual void read_streams(const ReadStreamsArgs& /*args*/) { DSPACK_CHECK(false, "this device mixes no streams"); }
  virtual void join_streams(const JoinStreamsArgs& /*args*/) { DSPACK_CHECK(false, "this device mixes no streams"); }

  /// gate = silu(min(gate, limit)) * clamp(up, -limit, limit), elementwise.
  virtual void silu_multiply(const Rows& gate, const Rows& up, float limit = kNoLimit) = 0;
  /// y += x, elementwise.
  virtual void add(const Rows& y, const Rows& x) = 0;

  virtual void route(const RouterArgs& args) = 0;

  virtual void run_experts(const ExpertsArgs& args) = 0;
  virtual void run_expert_parts(const ExpertPartsArgs& args) = 0;
  /// False: this queue does not find experts itself, or not for so many rows; nothing was enqueued.
  [[nodiscard]] virtual bool run_held_experts(const HeldExpertsArgs& /*args*/) { return false; }

  /// Stores rows one behind the other as `dtype` (f32, bf16, f16), each value rounded to the nearest, ties to even;
  /// a number beyond F16's largest becomes that, since one infinite key would decide all of a row's attention.
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

  /// to[i] = from[rows[i]] for every i. As of `copy`, one of the places may be the host's memory.
  virtual void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) = 0;
  /// to[rows[i]] = from[i] for every i; no row appears twice. One of the places may be the host's memory.
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
  /// would depend on their number. False: it does not; nothing was enqueued.
  [[nodiscard]] virtual bool attend_expanded(const RopeArgs& /*rotated*/, const ExpandedAttendArgs& /*args*/) {
    return false;
  }
  /// args.logits = router . x, and route.
  virtual void route_rows(const Weight& router, const Rows& x, const RouterArgs& args) {
    linear(router, x, {.data = args.logits, .rows = args.rows, .cols = args.experts, .stride = args.experts});
    route(args);
  }
  virtual void run_mlp(const MlpArgs& args) {
    gated_linear(args.weights.gate, args.weights.up, args.x, args.inner, args.scratch, args.weights.limit);
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
  /// (pinned), and which it addresses itself (Queue::copy), as other devices of this kind do. Errors: budget.
  [[nodiscard]] virtual Result<std::unique_ptr<Buffer>> allocate_host(uint64_t bytes) = 0;
  [[nodiscard]] virtual std::unique_ptr<Queue> make_queue() = 0;
  /// Whether buffers lie in the host's memory (Buffer::host).
  [[nodiscard]] virtual bool is_host() const = 0;
  /// Whether its queues have the operations of DeepSeek-V4: window_attend, compress, read_streams, join_streams, rope
  /// turned back, keys that stand for several positions, given experts, and limits of gated MLPs.
  [[nodiscard]] virtual bool has_compressed_attention() const { return false; }
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
