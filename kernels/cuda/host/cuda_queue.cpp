#include "kernels/cuda/host/cuda_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "format/base/check.h"
#include "kernels/checks.h"
#include "kernels/cuda/host/cuda_memory.h"
#include "kernels/cuda/host/operands.h"
#include "kernels/cuda/host/queue.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/tokens/argmax.h"
#include "kernels/cuda/tokens/sample.h"
#include "kernels/cuda/tokens/streams.h"

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

}  // namespace

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

std::shared_ptr<Event> CudaQueue::mark() {
  return std::make_shared<CudaEvent>(stream().mark());
}

void CudaQueue::wait(const Event& event) {
  stream().wait(static_cast<const CudaEvent&>(event).event());
}

void CudaQueue::linear(const Weight& weight, const Rows& x, const Rows& y) {
  check_linear(weight, x, y);
  if (x.rows == 0 || weight.out == 0) return;
  const LinearTask task{.weight = matrix_of(weight), .x = inputs_at(x), .y = rows_at(y), .rows = x.rows};
  multiply(task);
  (void)stream_to(written_to(y));  // the rounded inputs may have been rows of y
}

bool CudaQueue::multiplies_on_tensor_cores(const Matrix& weight) const {
  return precision_ != Precision::exact && fits_tensor_cores(form_of(weight));
}

/// Does not call stream(), so that products of the same input round it once. `adds`: at most kMaxFusedRows rows.
void CudaQueue::multiply(const LinearTask& task) {
  if (blas_ != nullptr && blas_->run(*stream_, task, is_recording_)) return;
  if (!multiplies_on_tensor_cores(task.weight)) return linear_exact(*stream_, task, properties_.multiprocessors);
  constexpr uint64_t kRowUnit = 64;  // rows that share one read of the weights
  const uint64_t most = kMaxRoundedBytes / std::max<uint64_t>(rounded_bytes(1, task.weight.in), 1);
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
                             .rows = round.rows,
                             .adds = task.adds});
  }
}

/// Reserves memory for the rows and records that it holds them from now on.
RoundedRows CudaQueue::place_for_rounded(RoundRowsTask rows, Precision rounding) {
  const uint64_t bytes = rounded_bytes(rows.rows, rows.in);
  const uint64_t at = rounded_.make_room(bytes);
  rows.to =
      lay_out_rounded(workspace_.at_least(std::max(at + bytes, expected_bytes_)) + at, rows.rows, rows.in, rounding);
  rounded_.keep(rows, at + bytes);
  return rows.to;
}

/// Returns the rows rounded. Rounds them unless they already are and nothing enqueued since may have changed them.
/// (Other queues that change them wait for this queue first, by mark() or synchronize().)
RoundedRows CudaQueue::rounded(RoundRowsTask rows, Precision rounding) {
  if (const auto found = rounded_.find(rows, rounding)) return *found;
  rows.to = place_for_rounded(rows, rounding);
  run_round_rows(*stream_, rows);
  return rows.to;
}

/// Makes a norm round its result for those readers that multiply on tensor cores.
void CudaQueue::round_for(std::span<const Weight> readers, RmsNormTask& task) {
  for (const Weight& reader : readers) {
    if (!multiplies_on_tensor_cores(matrix_of(reader))) continue;
    const Precision rounding = input_rounding(reader.coding, precision_);
    RoundedRows& to = rounding == Precision::fp8 ? task.fp8 : task.bf16;
    if (to.values != nullptr) continue;
    to = place_for_rounded(
        {.x = {.data = task.y.data, .stride = task.y.stride}, .rows = task.rows, .in = task.cols, .to = {}}, rounding);
  }
}

void CudaQueue::rms_norm_for(std::span<const Weight> readers, const Rows& x, Slice gain, float epsilon, const Rows& y) {
  if (x.rows > kMaxFusedRows) return rms_norm(x, gain, epsilon, y);
  check_rms_norm(x, gain, y);
  if (is_empty(x)) return;
  gpu::Stream& stream = stream_to(written_to(y));
  RmsNormTask task{
      .x = inputs_at(x), .y = rows_at(y), .gain = floats(gain), .epsilon = epsilon, .rows = x.rows, .cols = x.cols};
  round_for(readers, task);
  run_rms_norm(stream, task);
}

/// Multiplies in one launch if possible.
void CudaQueue::multiply_each(std::span<const LinearTask> tasks) {
  const bool on_tensor_cores = multiplies_on_tensor_cores(tasks.front().weight);
  if (!on_tensor_cores && fits_one_launch(tasks) &&
      std::ranges::none_of(tasks, [&](const LinearTask& task) { return multiplies_on_tensor_cores(task.weight); }))
    return linear_exact_each(*stream_, tasks, properties_.multiprocessors);
  const Coding coding = tasks.front().weight.coding;
  const bool are_alike = std::ranges::all_of(tasks, [&](const LinearTask& task) {
    return task.weight.coding == coding && multiplies_on_tensor_cores(task.weight);
  });
  if (on_tensor_cores && are_alike && tasks.front().rows <= kMaxTensorRows) {
    const LinearTask& first = tasks.front();
    const RoundedRows x = rounded({.x = first.x, .rows = first.rows, .in = first.weight.in, .to = {}},
                                  input_rounding(coding, precision_));
    std::vector<TensorTask> products;
    for (const LinearTask& task : tasks)
      products.push_back({.weight = task.weight, .x = x, .y = task.y, .rows = task.rows, .adds = task.adds});
    return linear_tensor_each(*stream_, products);
  }
  for (const LinearTask& task : tasks)
    multiply(task);
}

void CudaQueue::linear_each(std::span<const Product> products, const Rows& x) {
  const bool is_empty_one = std::ranges::any_of(products, [](const Product& one) { return one.weight.out == 0; });
  if (x.rows == 0 || x.rows > kMaxFusedRows || is_empty_one) return Queue::linear_each(products, x);
  std::vector<LinearTask> tasks;
  for (const Product& one : products) {
    check_linear(one.weight, x, one.y);
    tasks.push_back({.weight = matrix_of(one.weight), .x = inputs_at(x), .y = rows_at(one.y), .rows = x.rows});
  }
  // As many in a launch as follow each other in one coding.
  for (std::span<const LinearTask> left(tasks); !left.empty();) {
    size_t count = 1;
    while (count < std::min<size_t>(left.size(), kMaxProducts) &&
           left[count].weight.coding == left.front().weight.coding)
      ++count;
    multiply_each(left.first(count));
    left = left.subspan(count);
  }
  for (const Product& one : products)
    (void)stream_to(written_to(one.y));
}

void CudaQueue::gated_linear(const Weight& gate, const Weight& up, const Rows& x, const Rows& y, const Rows& scratch,
                             float limit) {
  linear_each(std::array{Product{.weight = gate, .y = y}, Product{.weight = up, .y = scratch}}, x);
  silu_multiply(y, scratch, limit);
}

void CudaQueue::add_linear(const Weight& weight, const Rows& x, const Rows& y, const Rows& scratch) {
  if (x.rows > kMaxFusedRows) return Queue::add_linear(weight, x, y, scratch);
  check_linear(weight, x, y);
  check_same_shape(y, scratch);
  if (x.rows == 0 || weight.out == 0) return;
  multiply({.weight = matrix_of(weight), .x = inputs_at(x), .y = rows_at(y), .rows = x.rows, .adds = true});
  (void)stream_to(written_to(y));
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

void CudaQueue::silu_multiply(const Rows& gate, const Rows& up, float limit) {
  check_same_shape(gate, up);
  if (!is_empty(gate)) run_silu_multiply(stream_to(written_to(gate)), pair(gate, up), limit);
}

void CudaQueue::read_streams(const ReadStreamsArgs& args) {
  check_read_streams(args);
  if (is_empty(args.y)) return;
  run_read_streams(stream(), {.streams = inputs_at(args.streams),
                              .logits = floats(args.logits),
                              .base = floats(args.base),
                              .scale = floats(args.scale),
                              .y = rows_at(args.y),
                              .rows = args.y.rows,
                              .cols = args.y.cols,
                              .count = args.count,
                              .rounds = args.rounds,
                              .norm_epsilon = args.norm_epsilon,
                              .epsilon = args.epsilon});
}

void CudaQueue::join_streams(const JoinStreamsArgs& args) {
  check_join_streams(args);
  if (is_empty(args.y)) return;
  run_join_streams(stream_to(written_to(args.streams)), {.streams = rows_at(args.streams),
                                                         .mix = floats(args.mix),
                                                         .y = inputs_at(args.y),
                                                         .rows = args.y.rows,
                                                         .cols = args.y.cols,
                                                         .count = args.count});
}

void CudaQueue::add(const Rows& y, const Rows& x) {
  check_same_shape(y, x);
  if (!is_empty(y)) run_add(stream_to(written_to(y)), pair(y, x));
}

/// Counters are zero from their first use on, and zero again after each use. Allocated on first use, not with the
/// queue: the plan should be what detects a full GPU.
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

void CudaQueue::make_room_for(std::span<const uint32_t> numbers) {
  if (index_space_.has_room(numbers.size_bytes())) return;
  stream_->synchronize();  // earlier numbers have been used
  index_space_.clear(numbers.size_bytes());
}

// Does not call stream(): rounded inputs and their memory are not written.
const uint32_t* CudaQueue::on_device(std::span<const uint32_t> numbers) {
  make_room_for(numbers);
  return index_space_.put(*stream_, numbers);
}

const uint32_t* CudaQueue::visible_to_device(std::span<const uint32_t> numbers) {
  make_room_for(numbers);
  return index_space_.keep(numbers);
}

void CudaQueue::gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) {
  check_indexed_rows(to, from, rows, IndexUse::gather);
  if (is_empty(to)) return;
  run_gather_rows(stream(), {.to = visible_rows_at(to),
                             .from = visible_inputs_at(from),
                             .index = on_device(rows),
                             .rows = to.rows,
                             .cols = to.cols});
}

void CudaQueue::scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) {
  check_indexed_rows(to, from, rows, IndexUse::scatter);
  if (is_empty(from)) return;
  run_scatter_rows(stream(), {.to = visible_rows_at(to),
                              .from = visible_inputs_at(from),
                              .index = on_device(rows),
                              .rows = from.rows,
                              .cols = from.cols});
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
  run_argmax(stream(),
             {.x = inputs_at(x),
              .ids = numbers(ids),
              .rows = x.rows,
              .cols = x.cols,
              .of_parts = reinterpret_cast<Highest*>(workspace_.at_least(argmax_scratch_bytes(x.rows, x.cols))),
              .counter = expert_counters() + kTokenCounter});
}

void CudaQueue::sample(const SampleArgs& args) {
  check_sample(args);
  const Rows& logits = args.logits;
  if (logits.rows == 0) return;
  std::byte* scratch = workspace_.at_least(sample_scratch_bytes(logits.rows, logits.cols));
  run_sample(stream(), {.logits = inputs_at(logits),
                        .settings = reinterpret_cast<const SampleSettings*>(address_of(args.settings)),
                        .keys = reinterpret_cast<const NoiseKey*>(address_of(args.keys)),
                        .ids = numbers(args.ids),
                        .rows = logits.rows,
                        .cols = logits.cols,
                        .scratch = lay_out_sample(scratch, logits.rows, logits.cols),
                        .counter = expert_counters() + kTokenCounter});
}

std::unique_ptr<Step> CudaQueue::record(const std::function<void()>& operations) {
  (void)expert_counters();  // zeroes the counters now, not in the recorded step
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

std::unique_ptr<Queue> make_cuda_queue(const gpu::Properties& properties, Precision precision,
                                       std::shared_ptr<BlasUse> blas) {
  return std::make_unique<CudaQueue>(properties, precision, std::move(blas));
}

}  // namespace dspack::kernels::cuda
