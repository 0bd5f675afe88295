#include "kernels/cuda/cuda_queue.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "format/base/check.h"
#include "kernels/checks.h"
#include "kernels/cuda/attend.h"
#include "kernels/cuda/choose.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/expert_tiles.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/latent_rows.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/rounded_input.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/sample.h"

namespace dspack::kernels::cuda {
namespace {

class RecordedStep final : public Step {
 public:
  explicit RecordedStep(std::unique_ptr<gpu::Graph> graph) : graph_(std::move(graph)) {}
  [[nodiscard]] gpu::Graph& graph() { return *graph_; }

 private:
  std::unique_ptr<gpu::Graph> graph_;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<gpu::Event> event) : event_(std::move(event)) {}
  [[nodiscard]] bool is_reached() override { return event_->is_reached(); }
  void wait() override { event_->wait(); }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    return event_->seconds_since(static_cast<const CudaEvent&>(earlier).event());
  }
  [[nodiscard]] const gpu::Event& event() const { return *event_; }

 private:
  std::shared_ptr<gpu::Event> event_;
};

class CudaQueue final : public Queue {
 public:
  CudaQueue(gpu::Properties properties, Precision precision, std::shared_ptr<BlasUse> blas)
      : properties_(std::move(properties)), precision_(precision), stream_(gpu::make_stream()) {
    if (blas != nullptr) blas_ = std::make_unique<LinearBlas>(std::move(blas), properties_, precision_);
  }

  void expect(const WorkspaceShape& largest) override {
    expected_bytes_ = shared_workspace_bytes(largest, precision_);
    expects_choices_ = choice_workspace_bytes(largest) > 0;
  }
  void upload(Slice to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Slice from) override;
  void copy(Slice to, Slice from, uint64_t bytes) override;
  void synchronize() override;
  std::optional<Error> failure() const override { return gpu::failure(); }
  std::shared_ptr<Event> mark() override { return std::make_shared<CudaEvent>(stream().mark()); }
  void wait(const Event& event) override { stream().wait(static_cast<const CudaEvent&>(event).event()); }

  void linear(const Weight& weight, const Rows& x, const Rows& y) override;
  void head_linear_transposed(const HeadLinearArgs& args) override;
  void head_linear(const HeadLinearArgs& args) override;
  void rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) override;
  void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) override;
  void rope(const RopeArgs& args) override;
  void choose(const ChooseArgs& args) override;
  void mla_attend(const MlaAttendArgs& args) override;
  void silu_multiply(const Rows& gate, const Rows& up) override;
  void add(const Rows& y, const Rows& x) override;
  void route(const RouterArgs& args) override;
  void run_experts(const ExpertsArgs& args) override;
  void run_expert_parts(const ExpertPartsArgs& args) override;
  void store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) override;
  void store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live) override;
  void store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live) override;
  void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override;
  void scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override;
  void combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) override;
  void argmax(const Rows& x, Slice ids) override;
  void sample(const SampleArgs& args) override;

  std::unique_ptr<Step> record(const std::function<void()>& operations) override;
  void run(Step& step) override;

 private:
  /// For operations that may change rounded inputs or where they are.
  [[nodiscard]] gpu::Stream& stream() {
    last_rounded_.reset();
    return *stream_;
  }
  /// For those that do not use the workspace and write nowhere else.
  [[nodiscard]] gpu::Stream& stream_to(const Written& written) {
    if (last_rounded_ && last_rounded_->is_changed_by(written)) last_rounded_.reset();
    return *stream_;
  }
  void multiply(const LinearTask& task);
  RoundedRows rounded(RoundRowsTask rows, Precision rounding);
  const uint32_t* on_device(std::span<const uint32_t> rows);
  std::byte* counters(Workspace& space, uint64_t bytes);
  uint32_t* expert_counters();
  ChooseCounters* choose_counters();

  gpu::Properties properties_;
  Precision precision_;
  std::unique_ptr<LinearBlas> blas_;  // null: there is no cuBLASLt
  bool is_recording_ = false;
  std::unique_ptr<gpu::Stream> stream_;
  Workspace workspace_;
  std::optional<RoundedInput> last_rounded_;  // in workspace_, or what it was before
  uint64_t expected_bytes_ = 0;               // of workspace_, for the largest call
  Workspace counter_space_;                   // ExpertsTask::counters
  Workspace choose_counter_space_;            // ChooseTask::counters
  bool expects_choices_ = false;
  IndexSpace index_space_;
};

void CudaQueue::upload(Slice to, std::span<const std::byte> from) {
  check_extent(to, from.size());
  if (!from.empty()) stream().copy_to_device(address_of(to), from.data(), from.size());
}

void CudaQueue::download(std::span<std::byte> to, Slice from) {
  check_extent(from, to.size());
  if (!to.empty()) stream().copy_to_host(to.data(), address_of(from), to.size());
}

void CudaQueue::copy(Slice to, Slice from, uint64_t bytes) {
  check_extent(to, bytes);
  check_extent(from, bytes);
  if (bytes == 0) return;
  if (is_pinned(to) || is_pinned(from))
    return run_copy(stream(), {.to = visible_address(to), .from = visible_address(from), .bytes = bytes});
  if (address_of(to) == address_of(from)) return;
  const bool apart = to.buffer != from.buffer || to.offset_bytes + bytes <= from.offset_bytes ||
                     from.offset_bytes + bytes <= to.offset_bytes;
  DSPACK_CHECK(apart, "a copy onto a part of itself");
  stream().copy_on_device(address_of(to), address_of(from), bytes);
}

void CudaQueue::synchronize() {
  stream().synchronize();
  index_space_.clear(0);
}

void CudaQueue::linear(const Weight& weight, const Rows& x, const Rows& y) {
  check_linear(weight, x, y);
  if (x.rows == 0 || weight.out == 0) return;
  const LinearTask task{.weight = matrix_of(weight), .x = inputs_at(x), .y = rows_at(y), .rows = x.rows};
  multiply(task);
  (void)stream_to(written_to(y));  // what was rounded may have been rows of y
}

/// Not by stream(): products of the same input round it once.
void CudaQueue::multiply(const LinearTask& task) {
  if (blas_ != nullptr && blas_->run(*stream_, task, is_recording_)) return;
  if (precision_ == Precision::exact || !fits_tensor_cores(form_of(task.weight)))
    return linear_exact(*stream_, task, properties_.multiprocessors);
  constexpr uint64_t kRowUnit = 64;  // that read the weights together
  const uint64_t most = kMostRoundedBytes / std::max<uint64_t>(rounded_bytes(1, task.weight.in), 1);
  const uint64_t whole = most < kRowUnit ? std::max<uint64_t>(most, 1) : most / kRowUnit * kRowUnit;
  const auto rows_at_once = static_cast<uint32_t>(std::min<uint64_t>(task.rows, whole));
  for (uint32_t row = 0; row < task.rows; row += rows_at_once) {
    const RoundRowsTask round{.x = {.data = task.x.data + row * task.x.stride, .stride = task.x.stride},
                              .rows = std::min(rows_at_once, task.rows - row),
                              .in = task.weight.in,
                              .to = {}};
    linear_tensor(*stream_, {.weight = task.weight,
                             .x = rounded(round, input_rounding(task.weight.coding, precision_)),
                             .y = {.data = task.y.data + row * task.y.stride, .stride = task.y.stride},
                             .rows = round.rows});
  }
}

/// The rows, rounded; anew unless they were the last ones and nothing has been enqueued since that may have changed
/// them. (Whoever changes them elsewhere waits for this queue before, by mark() or synchronize().)
RoundedRows CudaQueue::rounded(RoundRowsTask rows, Precision rounding) {
  if (last_rounded_ && last_rounded_->is(rows, rounding)) return last_rounded_->to;
  const uint64_t bytes = rounded_bytes(rows.rows, rows.in);
  rows.to = lay_out_rounded(workspace_.at_least(std::max(bytes, expected_bytes_)), rows.rows, rows.in, rounding);
  run_round_rows(*stream_, rows);
  last_rounded_.emplace(rows);
  return rows.to;
}

void CudaQueue::head_linear(const HeadLinearArgs& args) {
  check_head_linear(args);
  if (args.rows == 0 || args.heads == 0 || args.rows_used == 0) return;
  head_linear_exact(stream(), head_task(args));
}

void CudaQueue::head_linear_transposed(const HeadLinearArgs& args) {
  check_head_linear_transposed(args);
  if (args.rows == 0 || args.heads == 0 || args.weight.in == 0) return;
  head_linear_transposed_exact(stream(), head_task(args));
}

void CudaQueue::rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) {
  check_rms_norm(x, gain, y);
  if (is_empty(x)) return;
  run_rms_norm(
      stream_to(written_to(y)),
      {.x = inputs_at(x), .y = rows_at(y), .gain = floats(gain), .epsilon = epsilon, .rows = x.rows, .cols = x.cols});
}

void CudaQueue::layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) {
  check_layer_norm(x, gain, bias, y);
  if (is_empty(x)) return;
  run_layer_norm(stream(), {.x = inputs_at(x),
                            .y = rows_at(y),
                            .gain = floats(gain),
                            .bias = floats(bias),
                            .epsilon = epsilon,
                            .rows = x.rows,
                            .cols = x.cols});
}

void CudaQueue::rope(const RopeArgs& args) {
  check_rope(args);
  if (args.rows == 0 || args.heads == 0 || args.dim == 0) return;
  const uint64_t values =
      (args.rows - 1) * uint64_t{args.row_stride} + (args.heads - 1) * uint64_t{args.head_stride} + args.dim;
  run_rotate(stream_to(written_to(floats(args.data), values)), rotate_task(args));
}

void CudaQueue::choose(const ChooseArgs& args) {
  check_choose(args);
  if (args.rows == 0) return;
  const uint32_t limit = args.live.empty() ? args.first_position + args.rows : args.live.limit;
  const uint64_t bytes = std::max(choose_scratch_bytes(args.rows, limit), expected_bytes_);
  run_choose(stream(),
             {.queries = floats(args.queries),
              .weights = floats(args.weights),
              .keys = matrix_of(args.keys),
              .ids = numbers(args.choice.ids),
              .counts = numbers(args.choice.counts),
              .most = args.choice.most,
              .rows = args.rows,
              .heads = args.heads,
              .first_position = args.first_position,
              .position_limit = limit,
              .on_tensor_cores = precision_ != Precision::exact && fits_tensor_scores(args.keys.in, properties_),
              .live = numbers(args.live.value),
              .scratch = workspace_.at_least(bytes),
              .counters = choose_counters()});
}

void CudaQueue::mla_attend(const MlaAttendArgs& args) {
  check_mla_attend(args);
  if (args.rows == 0 || args.heads == 0) return;
  MlaAttendTask task{.query_latent = floats(args.query_latent),
                     .query_rope = floats(args.query_rope),
                     .cache = address_of(args.cache),
                     .out = floats(args.out),
                     .partial = nullptr,
                     .live_position = numbers(args.live.value),
                     .rows = args.rows,
                     .heads = args.heads,
                     .latent_dim = args.latent_dim,
                     .rope_dim = args.rope_dim,
                     .rope_row_stride = args.rope_row_stride,
                     .rope_head_stride = args.rope_head_stride,
                     .first_position = args.first_position,
                     .position_limit = args.live.empty() ? args.first_position + args.rows : args.live.limit,
                     .scale = args.scale,
                     .cache_dtype = args.cache_dtype};
  if (!args.choice.empty()) {
    task.chosen = numbers(args.choice.ids);
    task.counts = numbers(args.choice.counts);
    task.most_chosen = args.choice.most;
  }
  const AttendShape shape = shape_of(task);
  // As much as the largest call needs at once: what is outgrown stays until the queue goes.
  const uint64_t bytes = std::max(attend_scratch_bytes(shape), expected_bytes_);
  task.partial = reinterpret_cast<float*>(workspace_.at_least(bytes));
  const AttendChoice choice = attend_choice(shape, properties_);
  if (precision_ == Precision::exact || choice == AttendChoice::exact) return attend_exact(stream(), task);
  attend_tensor(stream(), task, choice);
}

void CudaQueue::silu_multiply(const Rows& gate, const Rows& up) {
  check_same_shape(gate, up);
  if (!is_empty(gate)) run_silu_multiply(stream(), pair(gate, up));
}

void CudaQueue::add(const Rows& y, const Rows& x) {
  check_same_shape(y, x);
  if (!is_empty(y)) run_add(stream(), pair(y, x));
}

void CudaQueue::route(const RouterArgs& args) {
  check_route(args);
  if (args.rows == 0) return;
  run_route(stream(), {.logits = floats(args.logits),
                       .bias = floats(args.bias),
                       .ids = numbers(args.ids),
                       .weights = floats(args.weights),
                       .rows = args.rows,
                       .experts = args.experts,
                       .top_k = args.top_k,
                       .groups = args.groups,
                       .groups_kept = args.groups_kept,
                       .score = args.score,
                       .group_score = args.group_score,
                       .normalise = args.normalise,
                       .scale = args.scale});
}

/// Zero from their first use on, and again after each. Not taken with the queue: a GPU that is full is found out by the
/// plan.
std::byte* CudaQueue::counters(Workspace& space, uint64_t bytes) {
  const bool is_first = space.size_bytes() == 0;
  std::byte* memory = space.at_least(bytes);
  if (is_first) stream().fill(memory, 0, bytes);
  return memory;
}
uint32_t* CudaQueue::expert_counters() {
  return reinterpret_cast<uint32_t*>(counters(counter_space_, kExpertCounterBytes));
}
ChooseCounters* CudaQueue::choose_counters() {
  return reinterpret_cast<ChooseCounters*>(counters(choose_counter_space_, kChooseCounterBytes));
}

void CudaQueue::run_experts(const ExpertsArgs& args) {
  const auto& table = static_cast<const CudaExpertTable&>(*args.table);
  check_experts(args, experts_scratch_bytes({.hidden = args.x.cols,
                                             .inner = table.form().gate_up.out,
                                             .experts = table.size(),
                                             .top_k = args.top_k,
                                             .rows = args.x.rows},
                                            precision_));
  DSPACK_CHECK(args.x.cols == table.form().gate_up.in, "experts of another model");
  if (args.x.rows == 0) return;
  const ExpertsTask task{.table = table.entries(),
                         .form = table.form(),
                         .experts = table.size(),
                         .x = inputs_at(args.x),
                         .ids = numbers(args.ids),
                         .weights = floats(args.weights),
                         .tokens = args.x.rows,
                         .top_k = args.top_k,
                         .scratch = address_of(args.scratch),
                         .y = rows_at(args.y),
                         .counters = expert_counters()};
  if (precision_ != Precision::exact && experts_fit_tensor_cores(task.form))
    return run_experts_tensor(stream(), task, precision_);
  cuda::run_experts(stream(), task);
}

void CudaQueue::run_expert_parts(const ExpertPartsArgs& args) {
  const auto& table = static_cast<const CudaExpertTable&>(*args.table);
  check_expert_parts(args, experts_scratch_bytes({.hidden = args.x.cols,
                                                  .inner = table.form().gate_up.out,
                                                  .experts = table.size(),
                                                  .top_k = args.top_k,
                                                  .rows = args.x.rows,
                                                  .parts_only = true},
                                                 precision_));
  DSPACK_CHECK(args.x.cols == table.form().gate_up.in, "experts of another model");
  const uint32_t most = largest_group(args.groups);
  if (most == 0) return;
  const bool on_tensor_cores = precision_ != Precision::exact && experts_fit_tensor_cores(table.form());
  const ExpertGroupWords cut = cut_expert_groups(args.groups, on_tensor_cores ? tensor_tile(most) : exact_tile(most));
  const ExpertsTask task{.table = table.entries(),
                         .form = table.form(),
                         .experts = table.size(),
                         .x = inputs_at(args.x),
                         .tokens = args.x.rows,
                         .top_k = args.top_k,
                         .scratch = address_of(args.scratch),
                         .cut = cut.at(on_device(cut.words), most),
                         .parts = rows_at(args.parts)};
  if (on_tensor_cores) return run_experts_tensor(stream(), task, precision_);
  cuda::run_experts(stream(), task);
}

void CudaQueue::store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) {
  check_stored_rows(from, to, dtype, live);
  if (is_empty(from)) return;
  run_store_rows(stream_to(written_behind(to)), {.to = address_of(to),
                                                 .dtype = dtype,
                                                 .from = inputs_at(from),
                                                 .rows = from.rows,
                                                 .cols = from.cols,
                                                 .live = numbers(live.value)});
}

void CudaQueue::store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live) {
  check_stored_latents(from, to, shape, live);
  if (is_empty(from)) return;
  run_store_latents(stream_to(written_behind(to)), {.to = reinterpret_cast<uint8_t*>(address_of(to)),
                                                    .shape = shape,
                                                    .row = fp8_row(shape),
                                                    .tiles = latent_tiles(shape.latent_dim),
                                                    .from = inputs_at(from),
                                                    .rows = from.rows,
                                                    .live = numbers(live.value)});
}

void CudaQueue::store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live) {
  check_stored_fp8_rows(from, codes, scales, live);
  if (is_empty(from)) return;
  run_store_fp8_rows(stream(), {.codes = reinterpret_cast<uint8_t*>(address_of(codes)),
                                .scales = floats(scales),
                                .from = inputs_at(from),
                                .rows = from.rows,
                                .cols = from.cols,
                                .live = numbers(live.value)});
}

const uint32_t* CudaQueue::on_device(std::span<const uint32_t> rows) {
  if (!index_space_.has_room(rows.size_bytes())) {
    synchronize();  // what was there has been used
    index_space_.clear(rows.size_bytes());
  }
  return index_space_.put(stream(), rows);
}

void CudaQueue::gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) {
  check_indexed_rows(to, from, rows, IndexUse::gather);
  if (is_empty(to)) return;
  run_gather_rows(
      stream(),
      {.to = rows_at(to), .from = inputs_at(from), .index = on_device(rows), .rows = to.rows, .cols = to.cols});
}

void CudaQueue::scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) {
  check_indexed_rows(to, from, rows, IndexUse::scatter);
  if (is_empty(from)) return;
  run_scatter_rows(
      stream(),
      {.to = rows_at(to), .from = inputs_at(from), .index = on_device(rows), .rows = from.rows, .cols = from.cols});
}

void CudaQueue::combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) {
  check_combine(y, parts, weights, top_k);
  if (is_empty(y)) return;
  run_weighted_sum(stream(), {.y = rows_at(y),
                              .parts = inputs_at(parts),
                              .weights = floats(weights),
                              .rows = y.rows,
                              .cols = y.cols,
                              .top_k = top_k});
}

void CudaQueue::argmax(const Rows& x, Slice ids) {
  check_argmax(x, ids);
  if (x.rows == 0) return;
  run_argmax(stream(), {.x = inputs_at(x), .ids = numbers(ids), .rows = x.rows, .cols = x.cols});
}

void CudaQueue::sample(const SampleArgs& args) {
  check_sample(args);
  const Rows& logits = args.logits;
  if (logits.rows == 0) return;
  std::byte* scratch = workspace_.at_least(sample_scratch_bytes(logits.rows, logits.cols));
  run_sample(stream(), {.logits = inputs_at(logits),
                        .settings = reinterpret_cast<const SampleSettings*>(address_of(args.settings)),
                        .uniforms = reinterpret_cast<const double*>(address_of(args.uniforms)),
                        .ids = numbers(args.ids),
                        .rows = logits.rows,
                        .cols = logits.cols,
                        .scratch = lay_out_sample(scratch, logits.rows, logits.cols)});
}

std::unique_ptr<Step> CudaQueue::record(const std::function<void()>& operations) {
  (void)expert_counters();  // they become zero now, and not when what is recorded runs
  if (expects_choices_) (void)choose_counters();
  stream().begin_recording();
  is_recording_ = true;
  operations();
  is_recording_ = false;
  return std::make_unique<RecordedStep>(stream().end_recording());
}

void CudaQueue::run(Step& step) {
  stream().run(static_cast<RecordedStep&>(step).graph());
}

}  // namespace

std::unique_ptr<Queue> make_cuda_queue(const gpu::Properties& properties, Precision precision,
                                       std::shared_ptr<BlasUse> blas) {
  return std::make_unique<CudaQueue>(properties, precision, std::move(blas));
}

}  // namespace dspack::kernels::cuda
