// The arithmetic that the models need, on a queue and opaque buffers, with one interface for CPU and CUDA.
//
// A Device makes Buffers and Queues. A Queue is an ordered list of operations: each sees the effects of the ones before
// it. An operation may return before it has run; `synchronize` waits for all of them. The CPU device runs every
// operation to completion before it returns. Queues of one device run concurrently; `mark` and `wait` order operations
// of different queues.
// Threads: a Device is thread-safe; a Queue belongs to one thread at a time. Lifetime: a Slice borrows its Buffer; host
// spans are borrowed until the next `synchronize`, or until an event after the operation is reached; index spans only
// for the call. Errors: allocation returns a Result (budget); shapes that do not fit are programming errors
// (DSPACK_CHECK), since the loader has checked the checkpoint.
//
// Exactness (the contract of precision mode `exact`): activations and accumulation are FP32, small weight types are
// decoded without rounding, and the value of an output row depends only on its input row: not on the number of rows in
// the call, the thread count, or other computation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "format/base/check.h"
#include "format/base/result.h"
#include "kernels/attention_arguments.h"

namespace dspack::kernels {

/// A point in a queue's work, reached when everything enqueued before it has run.
class Event {
 public:
  virtual ~Event() = default;
  [[nodiscard]] virtual bool is_reached() = 0;
  /// Blocks until the event is reached.
  virtual void wait() = 0;
  /// Seconds by the device's clock since `earlier` was reached. Both events are reached and of the same device.
  [[nodiscard]] virtual double seconds_since(const Event& earlier) const = 0;
};

/// Operations recorded once and run as one (a CUDA graph).
class Step {
 public:
  virtual ~Step() = default;
};

/// Derived classes: CpuQueue, CudaQueue, and in tests DeferredQueue (tests/support/deferred_device.cpp) and
/// ListeningQueue (tests/runtime/support/choice_listener.cpp). All four have each operation without a definition here.
class Queue {
 public:
  virtual ~Queue() = default;

  /// Announces the largest calls to come. Until a larger one, the queue takes at most Device::workspace_bytes of the
  /// device's memory for itself; a larger call works, but takes more. This call itself allocates nothing.
  virtual void expect(const WorkspaceShape& /*largest*/) {}

  virtual void upload(Slice to, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, Slice from) = 0;
  /// Copies few bytes. One place may be host memory that the device addresses (allocate_host), borrowed like a host
  /// span: the device reads or writes it itself, so the copy never queues behind another queue's uploads or downloads.
  virtual void copy(Slice to, Slice from, uint64_t bytes) = 0;
  virtual void synchronize() = 0;
  /// A failure that no operation can report: the device is lost or out of memory. From then on nothing runs: enqueued
  /// operations are dropped, downloads leave their memory unchanged, events are reached. Call after synchronising,
  /// before using results on the host.
  [[nodiscard]] virtual std::optional<Error> failure() const { return std::nullopt; }
  /// Synchronises. Errors: the device's failure.
  [[nodiscard]] Result<void> finish() {
    synchronize();
    if (const auto failed = failure()) return *failed;
    return {};
  }
  /// An event after everything enqueued so far. Not while recording.
  [[nodiscard]] virtual std::shared_ptr<Event> mark() = 0;
  /// Operations enqueued from now on run after the event, which may be from another queue, also of another device of
  /// this kind. Not while recording.
  virtual void wait(const Event& event) = 0;

  /// y[r, o] = sum over i of x[r, i] * weight[o, i]. x [rows, in], y [rows, out].
  virtual void linear(const Weight& weight, const Rows& x, const Rows& y) = 0;

  /// The first half of a gated MLP: y[r, o] = silu(gate[o] . x[r]) * (up[o] . x[r]), with the bits of the two products
  /// and silu_multiply. gate and up [inner, in]; `scratch` [rows, inner] is overwritten and is no other operand.
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
  /// population variance are summed in double precision, for rows of a few hundred values.
  virtual void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  virtual void choose(const ChooseArgs& args) = 0;
  virtual void mla_attend(const MlaAttendArgs& args) = 0;

  // DeepSeek-V4's attention and residual streams. Precondition: keys of at most Device::max_window_dim values.
  virtual void store_in_ring(const StoreInRingArgs& /*args*/) { DSPACK_CHECK(false, "this device has no window"); }
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
  /// False: this queue cannot select experts itself, or not for this number of rows; nothing was enqueued.
  [[nodiscard]] virtual bool run_held_experts(const HeldExpertsArgs& /*args*/) { return false; }

  /// Stores rows contiguously as `dtype` (f32, bf16, f16), each value rounded to nearest, ties to even. A finite value
  /// beyond F16's largest becomes F16's largest: one infinite key would decide all of a row's attention. With a live
  /// position the first row goes *live rows after `to`.
  virtual void store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live = {}) = 0;

  /// Stores rows [latent | rope] contiguously in FP8 (latent_rows.h); `to` is 16-byte aligned. Codes are rounded to
  /// nearest, ties to even, and every device stores the same bits (except for a NaN in the rotary key). With a live
  /// position the first row goes *live rows after `to`.
  virtual void store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live = {}) = 0;

  /// Stores rows contiguously in FP8 (E4M3) with one scale per row of any length, computed as for a tile in
  /// latent_rows.h: codes [rows, cols], scales FP32 [rows]. With a live position the first row goes *live rows after
  /// `codes` and `scales`.
  virtual void store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live = {}) = 0;

  /// to[i] = from[rows[i]] for every i. One of the places may be host memory, as in `copy`.
  virtual void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) = 0;
  /// to[rows[i]] = from[i] for every i; no row appears twice. One of the places may be host memory, as in `copy`.
  virtual void scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) = 0;
  /// y[r] = sum over slot < top_k, in this order, of weights[r, slot] * parts[r * top_k + slot].
  virtual void combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) = 0;

  /// ids[r] (u32) = the index of the largest value of row r, the lowest among equals; kNoToken if a value is NaN or
  /// +infinity, or none is above -infinity (as in `sample`).
  virtual void argmax(const Rows& x, Slice ids) = 0;
  virtual void sample(const SampleArgs& args) = 0;

  // Operations that fuse neighbours in a model's layer. Each has the bits of the separate operations in precision
  // `exact`. A device overrides those that save it work (a launch, a round trip).

  /// Several products of the same input.
  virtual void linear_each(std::span<const Product> products, const Rows& x) {
    for (const Product& product : products)
      linear(product.weight, x, product.y);
  }
  /// y += weight . x. `scratch` has the shape of y, may be overwritten and is no other operand.
  virtual void add_linear(const Weight& weight, const Rows& x, const Rows& y, const Rows& scratch) {
    linear(weight, x, scratch);
    add(y, scratch);
  }
  /// rms_norm whose unmodified result is the input of the next products, with the weights `readers`.
  virtual void rms_norm_for(std::span<const Weight> /*readers*/, const Rows& x, Slice gain, float epsilon,
                            const Rows& y) {
    rms_norm(x, gain, epsilon, y);
  }
  /// `query_reader`: the weight that next multiplies the queries' latents; null: none.
  virtual void finish_latents(const LatentsArgs& args, const Weight* /*query_reader*/) {
    Rows latent = args.rows;
    latent.cols = args.shape.latent_dim;
    rms_norm(latent, args.gain, args.epsilon, latent);
    rope(args.rope);
    if (args.query.cols != 0) rms_norm(args.query, args.query_gain, args.epsilon, args.query);
    if (args.cache.empty()) return;
    LivePosition live = args.rope.live;
    if (!live.empty()) live.limit -= args.rope.first_position;  // `cache` already includes it
    if (args.cache_dtype == Dtype::f8_e4m3) return store_latents(args.cache, args.shape, args.rows, live);
    store_rows(args.cache, args.cache_dtype, args.rows, live);
  }
  /// rope, and key absorption of the same queries' other values.
  virtual void absorb(const RopeArgs& rotated, const HeadLinearArgs& absorbed) {
    rope(rotated);
    head_linear_transposed(absorbed);
  }
  /// The queries' rope, and attention with a key and a value for each head, if that takes this queue less time than
  /// absorbed attention with its two products: for many rows, and never in precision `exact`, since a row's bits would
  /// depend on the number of rows. False: it would not pay; nothing was enqueued.
  [[nodiscard]] virtual bool attend_expanded(const RopeArgs& /*rotated*/, const ExpandedAttendArgs& /*args*/) {
    return false;
  }
  /// args.logits = router . x, then route.
  virtual void route_rows(const Weight& router, const Rows& x, const RouterArgs& args) {
    linear(router, x, {.data = args.logits, .rows = args.rows, .cols = args.experts, .stride = args.experts});
    route(args);
  }
  virtual void run_mlp(const MlpArgs& args) {
    gated_linear(args.weights.gate, args.weights.up, args.x, args.inner, args.scratch, args.weights.limit);
    linear(args.weights.down, args.inner, args.y);
  }
  /// residual += the result of run_mlp. args.y may be overwritten.
  virtual void add_mlp(const MlpArgs& args, const Rows& residual) {
    run_mlp(args);
    add(residual, args.y);
  }
  /// residual += experts + shared expert. experts.y and shared->y may be overwritten.
  virtual void add_moe(const MoeArgs& args) {
    run_experts(args.experts);
    if (args.shared != nullptr) {
      run_mlp(*args.shared);
      add(args.experts.y, args.shared->y);
    }
    add(args.residual, args.experts.y);
  }

  /// Calls `operations` and records the operations that they enqueue on this queue, without running them. They upload
  /// and download nothing and do not synchronise. Null: this device does not record, and `operations` was not called.
  [[nodiscard]] virtual std::unique_ptr<Step> record(const std::function<void()>& operations) = 0;
  /// Enqueues a step recorded on this queue. The buffers that it uses must still exist.
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
  /// Human-readable name of the hardware: "cpu avx512, 8 threads".
  [[nodiscard]] virtual std::string_view description() const = 0;
  /// Uninitialised memory, aligned to at least 64 bytes. Errors: budget.
  [[nodiscard]] virtual Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes) = 0;
  /// Pinned, page-aligned host memory: this device copies to and from it directly and while it computes, and addresses
  /// it itself (Queue::copy), as do other devices of this kind. Errors: budget.
  [[nodiscard]] virtual Result<std::unique_ptr<Buffer>> allocate_host(uint64_t bytes) = 0;
  [[nodiscard]] virtual std::unique_ptr<Queue> make_queue() = 0;
  /// Whether buffers are in host memory (Buffer::host).
  [[nodiscard]] virtual bool is_host() const = 0;
  /// Most values of a key of window_attend; 0: its queues lack that operation, and others of DeepSeek-V4.
  [[nodiscard]] virtual uint32_t max_window_dim() const { return 0; }
  [[nodiscard]] virtual DeviceMemory memory() const = 0;
  /// A table of experts in this device's buffers. Errors: unsupported (experts of one layer differ in shape or storage
  /// form), budget.
  [[nodiscard]] virtual Result<std::unique_ptr<ExpertTable>> make_expert_table(
      std::span<const ExpertMatrices> experts) = 0;
  [[nodiscard]] virtual uint64_t experts_scratch_bytes(const ExpertsShape& shape) const = 0;
  /// Most memory of this device that a queue takes apart from buffers (Queue::expect). Monotonic in every number of the
  /// shape.
  [[nodiscard]] virtual uint64_t workspace_bytes(const WorkspaceShape& /*largest*/) const { return 0; }
};

}  // namespace dspack::kernels
