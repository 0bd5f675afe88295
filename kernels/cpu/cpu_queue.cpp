#include "kernels/cpu/cpu_queue.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/checks.h"
#include "kernels/cpu/choose.h"
#include "kernels/cpu/compress.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/route.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/streams.h"
#include "kernels/sampling.h"

namespace dspack::kernels {
namespace {

/// The current value of a live position. Checks that the rows from there on fit.
uint32_t position_now(const LivePosition& live, uint32_t first, uint32_t rows) {
  if (live.empty()) return first;
  const uint64_t now = uint64_t{first} + *reinterpret_cast<const uint32_t*>(host(live.value));
  DSPACK_CHECK(now + rows <= live.limit, "a live position beyond the last");
  return static_cast<uint32_t>(now);
}

using AttendFunction = void (*)(const AttendTask&, RowRange);

AttendFunction attend_function(const CpuOps& ops, Dtype dtype) {
  if (dtype == Dtype::bf16) return ops.attend_bf16;
  if (dtype == Dtype::f16) return ops.attend_f16;
  if (dtype == Dtype::f8_e4m3) return ops.attend_f8_e4m3;
  return ops.attend_f32;
}

/// For `at` of the arguments of operations (kernels/arguments.h).
struct HostAddresses {
  struct Anything {
    std::byte* address;
    template <class T>
    operator T*() const {  // NOLINT(google-explicit-constructor): the field's type is the one to have
      return reinterpret_cast<T*>(address);
    }
  };
  Anything operator()(Slice place) const { return {place.empty() ? nullptr : host(place)}; }
};

PairTask pair(const Rows& to, const Rows& from) {
  return {.to = floats(to.data),
          .to_stride = to.stride,
          .from = floats(from.data),
          .from_stride = from.stride,
          .cols = to.cols};
}

/// Calls part(head, begin, end) for the pieces of [begin, end) within one head of `per_head` items.
template <class Part>
void for_each_head(uint32_t begin, uint32_t end, uint32_t per_head, Part part) {
  while (begin < end) {
    const uint32_t head = begin / per_head;
    const uint32_t stop = std::min(end, (head + 1) * per_head);
    part(head, begin - head * per_head, stop - head * per_head);
    begin = stop;
  }
}

/// An event that is always reached: the CPU device runs operations immediately.
class Now final : public Event {
 public:
  [[nodiscard]] bool is_reached() override { return true; }
  void wait() override {}
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(time_ - dynamic_cast<const Now&>(earlier).time_).count();
  }

 private:
  std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
};

class CpuQueue final : public Queue {
 public:
  CpuQueue(const CpuOps& ops, Workers& workers, Precision precision)
      : ops_(ops), workers_(workers), products_(ops, workers, precision) {}

  void upload(Slice to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Slice from) override;
  void copy(Slice to, Slice from, uint64_t bytes) override;
  void synchronize() override {}
  std::shared_ptr<Event> mark() override { return std::make_shared<Now>(); }
  void wait(const Event&) override {}

  void linear(const Weight& weight, const Rows& x, const Rows& y) override;
  void gated_linear(const Weight& gate, const Weight& up, const Rows& x, const Rows& y, const Rows& scratch,
                    float limit) override;
  void head_linear_transposed(const HeadLinearArgs& args) override;
  void head_linear(const HeadLinearArgs& args) override;
  void rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) override;
  void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) override;
  void rope(const RopeArgs& args) override;
  void choose(const ChooseArgs& args) override;
  void mla_attend(const MlaAttendArgs& args) override;
  void store_in_ring(const StoreInRingArgs& args) override;
  void window_attend(const WindowAttendArgs& args) override;
  void compress(const CompressArgs& args) override;
  void read_streams(const ReadStreamsArgs& args) override;
  void join_streams(const JoinStreamsArgs& args) override;
  void store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) override;
  void store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live) override;
  void store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live) override;
  void silu_multiply(const Rows& gate, const Rows& up, float limit) override;
  void add(const Rows& y, const Rows& x) override;
  void route(const RouterArgs& args) override;
  void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override;
  void scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override;
  void combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) override;
  void run_experts(const ExpertsArgs& args) override;
  void run_expert_parts(const ExpertPartsArgs& args) override;
  void argmax(const Rows& x, Slice ids) override;
  void sample(const SampleArgs& args) override;
  // Operations have run when they return, so recording would gain nothing.
  std::unique_ptr<Step> record(const std::function<void()>&) override { return nullptr; }
  void run(Step&) override { DSPACK_CHECK(false, "the CPU device records nothing"); }

 private:
  const CpuOps& ops_;
  Workers& workers_;
  Products products_;
};

void CpuQueue::upload(Slice to, std::span<const std::byte> from) {
  check_extent(to, from.size());
  if (!from.empty()) std::memcpy(host(to), from.data(), from.size());
}

void CpuQueue::download(std::span<std::byte> to, Slice from) {
  check_extent(from, to.size());
  if (!to.empty()) std::memcpy(to.data(), host(from), to.size());
}

void CpuQueue::copy(Slice to, Slice from, uint64_t bytes) {
  check_extent(to, bytes);
  check_extent(from, bytes);
  if (bytes != 0) std::memmove(host(to), host(from), bytes);
}

void CpuQueue::linear(const Weight& weight, const Rows& x, const Rows& y) {
  check_linear(weight, x, y);
  products_.multiply(std::array{Products::Product{.weight = weight, .x = x, .y = y}});
}

void CpuQueue::gated_linear(const Weight& gate, const Weight& up, const Rows& x, const Rows& y, const Rows& scratch,
                            float limit) {
  check_linear(gate, x, y);
  check_linear(up, x, scratch);
  products_.multiply(
      std::array{Products::Product{.weight = gate, .x = x, .y = y, .up = &up, .scratch = scratch, .limit = limit}});
}

void CpuQueue::head_linear(const HeadLinearArgs& args) {
  check_head_linear(args);
  if (args.rows == 0) return;
  const MatrixView matrix = view_of(args.weight);
  Products::Pieces pieces = products_.scratch_for(matrix, args.rows);
  const uint64_t cost = uint64_t{args.weight.in} * args.rows;
  workers_.split(args.heads * args.rows_used, cost, [&](uint32_t first, uint32_t last) {
    std::byte* const scratch = pieces.take();
    for_each_head(first, last, args.rows_used, [&](uint32_t head, uint32_t begin, uint32_t end) {
      const uint32_t head_row = head * args.head_rows + args.first_row;
      products_.linear({.matrix = matrix,
                        .outputs = {head_row + begin, head_row + end},
                        .x = floats(args.x) + uint64_t{head} * args.x_head_stride,
                        .x_stride = args.x_row_stride,
                        .y = floats(args.y) + uint64_t{head} * args.y_head_stride + begin,
                        .y_stride = args.y_row_stride,
                        .rows = args.rows},
                       scratch);
    });
  });
}

void CpuQueue::head_linear_transposed(const HeadLinearArgs& args) {
  check_head_linear_transposed(args);
  if (args.rows == 0) return;
  const auto function = ops_.columns[static_cast<size_t>(args.weight.coding)];
  const MatrixView matrix = view_of(args.weight);
  // Parts are runs of whole vectors of columns, so that no part begins with a ragged vector.
  constexpr uint32_t kUnit = 64;
  const uint32_t units = (args.weight.in - 1) / kUnit + 1;
  const uint64_t cost = uint64_t{args.rows_used} * args.rows * kUnit;
  workers_.split(args.heads * units, cost, [&](uint32_t first, uint32_t last) {
    for_each_head(first, last, units, [&](uint32_t head, uint32_t begin, uint32_t end) {
      const uint32_t head_row = head * args.head_rows + args.first_row;
      function({.matrix = matrix,
                .matrix_rows = {head_row, head_row + args.rows_used},
                .columns = {begin * kUnit, std::min(end * kUnit, args.weight.in)},
                .x = floats(args.x) + uint64_t{head} * args.x_head_stride,
                .x_stride = args.x_row_stride,
                .y = floats(args.y) + uint64_t{head} * args.y_head_stride + uint64_t{begin} * kUnit,
                .y_stride = args.y_row_stride,
                .rows = args.rows});
    });
  });
}

void CpuQueue::rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) {
  check_rms_norm(x, gain, y);
  const NormTask task{.x = floats(x.data),
                      .x_stride = x.stride,
                      .gain = floats(gain),
                      .epsilon = epsilon,
                      .y = floats(y.data),
                      .y_stride = y.stride,
                      .cols = x.cols};
  workers_.split(x.rows, x.cols, [&](uint32_t begin, uint32_t end) { ops_.rms_norm(task, {begin, end}); });
}

void CpuQueue::layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) {
  check_layer_norm(x, gain, bias, y);
  constexpr uint64_t kCost = 8;  // cost of sums in double precision, in multiply-adds
  workers_.split(x.rows, kCost * x.cols, [&](uint32_t begin, uint32_t end) {
    for (uint64_t row = begin; row < end; ++row) {
      layer_norm_row(floats(x.data) + row * x.stride, floats(gain), floats(bias), epsilon, x.cols,
                     floats(y.data) + row * y.stride);
    }
  });
}

void CpuQueue::rope(const RopeArgs& args) {
  check_rope(args);
  if (args.rows == 0 || args.heads == 0 || args.dim == 0) return;
  const uint32_t position = position_now(args.live, args.first_position, args.rows);
  workers_.split(args.rows, uint64_t{args.heads} * args.dim, [&](uint32_t begin, uint32_t end) {
    RopeArgs part = args;
    part.rows = end - begin;
    part.first_position = position + begin;
    rotate(part, floats(args.data) + uint64_t{begin} * args.row_stride, floats(args.cos_sin));
  });
}

void CpuQueue::choose(const ChooseArgs& args) {
  check_choose(args);
  if (args.rows == 0) return;
  choose_positions(ops_, workers_, args, position_now(args.live, args.first_position, args.rows));
}

void CpuQueue::mla_attend(const MlaAttendArgs& args) {
  check_mla_attend(args);
  if (args.rows == 0 || args.heads == 0) return;
  const uint32_t position = position_now(args.live, args.first_position, args.rows);
  AttendTask task{.query_latent = floats(args.query_latent),
                  .query_rope = floats(args.query_rope),
                  .cache = host(args.cache),
                  .out = floats(args.out),
                  .heads = args.heads,
                  .latent_dim = args.latent_dim,
                  .rope_dim = args.rope_dim,
                  .rope_row_stride = args.rope_row_stride,
                  .rope_head_stride = args.rope_head_stride,
                  .first_position = position,
                  .scale = args.scale,
                  .fp8_row = fp8_row({args.latent_dim, args.rope_dim})};
  uint64_t positions = uint64_t{position} + args.rows;
  if (!args.choice.empty()) {
    task.chosen = reinterpret_cast<const uint32_t*>(host(args.choice.ids));
    task.counts = reinterpret_cast<const uint32_t*>(host(args.choice.counts));
    task.most_chosen = args.choice.most;
    positions = std::min<uint64_t>(positions, args.choice.most);
  }
  const bool needs_block = args.cache_dtype == Dtype::f8_e4m3 || !args.choice.empty();
  const uint64_t block_values = needs_block ? kAttendPositions * (uint64_t{args.latent_dim} + args.rope_dim) : 0;
  const AttendFunction function = attend_function(ops_, args.cache_dtype);
  workers_.split(args.rows * args.heads, positions * (2ULL * args.latent_dim + args.rope_dim),
                 [&](uint32_t begin, uint32_t end) {
                   std::vector<float> block(block_values);
                   AttendTask part = task;
                   part.block = block.data();
                   function(part, {begin, end});
                 });
}

void CpuQueue::store_in_ring(const StoreInRingArgs& args) {
  check_store_in_ring(args);
  const Rows& rows = args.rows;
  if (rows.rows == 0 || rows.cols == 0) return;
  const uint32_t first = position_now(args.live, args.first_position, rows.rows) % args.ring_rows;
  const auto store = [&](uint32_t at, uint32_t row, uint32_t count) {
    store_values(host(args.ring) + bytes_of(args.dtype, uint64_t{at} * rows.cols), args.dtype,
                 floats(rows.data) + uint64_t{row} * rows.stride, {.cols = rows.cols, .stride = rows.stride},
                 {0, count});
  };
  const uint32_t until_end = std::min(rows.rows, args.ring_rows - first);
  store(first, 0, until_end);
  store(0, until_end, rows.rows - until_end);
}

void CpuQueue::window_attend(const WindowAttendArgs& args) {
  check_window_attend(args);
  if (args.rows == 0 || args.heads == 0) return;
  const uint32_t first_position = position_now(args.live, args.first_position, args.rows);
  AttendTask task{.query_latent = floats(args.queries),
                  .cache = host(args.ring),
                  .out = floats(args.out),
                  .heads = args.heads,
                  .latent_dim = args.dim,
                  .first_position = first_position,
                  .scale = args.scale,
                  .window = args.window,
                  .ring_rows = args.ring_rows,
                  .sinks = floats(args.sinks)};
  uint64_t seen = args.window;
  if (!args.entries.empty()) {
    task.entries = host(args.entries);
    task.every = args.every;
    uint64_t entries = (uint64_t{first_position} + args.rows) / args.every;
    if (!args.choice.empty()) {
      task.chosen = reinterpret_cast<const uint32_t*>(host(args.choice.ids));
      task.counts = reinterpret_cast<const uint32_t*>(host(args.choice.counts));
      task.most_chosen = args.choice.most;
      entries = std::min<uint64_t>(entries, args.choice.most);
    }
    seen += entries;
  }
  const AttendFunction function = args.cache_dtype == Dtype::bf16  ? ops_.window_attend_bf16
                                  : args.cache_dtype == Dtype::f16 ? ops_.window_attend_f16
                                                                   : ops_.window_attend_f32;
  workers_.split(args.rows * args.heads, seen * 2 * args.dim, [&](uint32_t begin, uint32_t end) {
    std::vector<float> block(uint64_t{kAttendPositions} * args.dim);
    AttendTask part = task;
    part.block = block.data();
    function(part, {begin, end});
  });
}

void CpuQueue::compress(const CompressArgs& args) {
  check_compress(args);
  if (args.values.rows == 0) return;
  CompressArgs now = args;
  now.first_position = position_now(args.live, args.first_position, args.values.rows);
  compress_positions(workers_, now);
}

void CpuQueue::read_streams(const ReadStreamsArgs& args) {
  check_read_streams(args);
  workers_.split(args.y.rows, 2ULL * args.streams.cols, [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row)
      read_streams_row(args, row);
  });
}

void CpuQueue::join_streams(const JoinStreamsArgs& args) {
  check_join_streams(args);
  workers_.split(args.y.rows, uint64_t{args.count} * args.streams.cols, [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row)
      join_streams_row(args, row);
  });
}

void CpuQueue::store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) {
  check_stored_rows(from, to, dtype, live);
  if (from.rows == 0 || from.cols == 0) return;
  to = to.at(bytes_of(dtype, uint64_t{position_now(live, 0, from.rows)} * from.cols));
  workers_.split(from.rows, from.cols, [&](uint32_t begin, uint32_t end) {
    store_values(host(to), dtype, floats(from.data), {.cols = from.cols, .stride = from.stride}, {begin, end});
  });
}

void CpuQueue::store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live) {
  check_stored_latents(from, to, shape, live);
  if (from.rows == 0) return;
  constexpr uint64_t kCost = 8;  // cost of division and rounding, in multiply-adds
  to = to.at(position_now(live, 0, from.rows) * fp8_row(shape).bytes);
  workers_.split(from.rows, kCost * from.cols, [&](uint32_t begin, uint32_t end) {
    store_latent_rows(host(to), shape, floats(from.data), from.stride, {begin, end});
  });
}

void CpuQueue::store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live) {
  check_stored_fp8_rows(from, codes, scales, live);
  if (from.rows == 0 || from.cols == 0) return;
  constexpr uint64_t kCost = 8;  // cost of division and rounding, in multiply-adds
  const uint64_t first = position_now(live, 0, from.rows);
  workers_.split(from.rows, kCost * from.cols, [&](uint32_t begin, uint32_t end) {
    store_fp8_values(host(codes) + first * from.cols, floats(scales) + first, floats(from.data),
                     {.cols = from.cols, .stride = from.stride}, {begin, end});
  });
}

void CpuQueue::silu_multiply(const Rows& gate, const Rows& up, float limit) {
  check_same_shape(gate, up);
  const PairTask task = pair(gate, up);
  constexpr uint64_t kExpCost = 4;  // in memory-bound multiply-adds
  workers_.split(gate.rows, kExpCost * gate.cols, [&](uint32_t begin, uint32_t end) {
    ops_.silu_multiply(task, limit, {begin, end});
  });
}

void CpuQueue::add(const Rows& y, const Rows& x) {
  check_same_shape(y, x);
  const PairTask task = pair(y, x);
  workers_.split(y.rows, y.cols, [&](uint32_t begin, uint32_t end) { ops_.add(task, {begin, end}); });
}

void CpuQueue::route(const RouterArgs& args) {
  check_route(args);
  if (args.rows == 0) return;
  const RouteTask task = args.at(HostAddresses());
  workers_.split(args.rows, uint64_t{args.experts} * (args.top_k + 16ULL), [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row)
      route_row(task, row);
  });
}

void CpuQueue::gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) {
  check_indexed_rows(to, from, rows, IndexUse::gather);
  for (uint64_t i = 0; i < rows.size(); ++i) {
    std::memcpy(floats(to.data) + i * to.stride, floats(from.data) + uint64_t{rows[i]} * from.stride,
                uint64_t{to.cols} * sizeof(float));
  }
}

void CpuQueue::scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) {
  check_indexed_rows(to, from, rows, IndexUse::scatter);
  for (uint64_t i = 0; i < rows.size(); ++i) {
    std::memcpy(floats(to.data) + uint64_t{rows[i]} * to.stride, floats(from.data) + i * from.stride,
                uint64_t{to.cols} * sizeof(float));
  }
}

void CpuQueue::combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) {
  check_combine(y, parts, weights, top_k);
  const CombineTask task{.y = floats(y.data),
                         .y_stride = y.stride,
                         .parts = floats(parts.data),
                         .parts_stride = parts.stride,
                         .weights = floats(weights),
                         .top_k = top_k,
                         .cols = y.cols};
  workers_.split(y.rows, uint64_t{y.cols} * top_k, [&](uint32_t begin, uint32_t end) {
    ops_.combine(task, {begin, end});
  });
}

void CpuQueue::run_experts(const ExpertsArgs& args) {
  const auto& table = static_cast<const CpuExpertTable&>(*args.table);
  check_experts(args, grouped_experts_scratch_bytes({.hidden = args.x.cols,
                                                     .inner = table[0].gate.out,
                                                     .experts = table.size(),
                                                     .top_k = args.top_k,
                                                     .rows = args.x.rows}));
  if (args.x.rows == 0) return;
  const auto* ids = reinterpret_cast<const uint32_t*>(host(args.ids));
  run_experts_grouped(*this, products_, table, {ids, size_t{args.x.rows} * args.top_k}, args);
}

void CpuQueue::run_expert_parts(const ExpertPartsArgs& args) {
  const auto experts = args.table != nullptr ? static_cast<const CpuExpertTable&>(*args.table).all() : args.experts;
  check_expert_parts(args, grouped_experts_scratch_bytes({.hidden = args.x.cols,
                                                          .inner = experts[0].gate.out,
                                                          .top_k = args.top_k,
                                                          .rows = args.x.rows,
                                                          .parts_only = true}));
  run_grouped_parts(*this, products_, experts, args);
}

void CpuQueue::argmax(const Rows& x, Slice ids) {
  check_argmax(x, ids);
  for (uint64_t row = 0; row < x.rows; ++row) {
    const float* values = floats(x.data) + row * x.stride;
    uint32_t best = 0;
    for (uint32_t i = 1; i < x.cols; ++i) {
      if (std::isnan(values[best])) break;
      if (values[i] > values[best] || std::isnan(values[i])) best = i;
    }
    reinterpret_cast<uint32_t*>(host(ids))[row] = std::isfinite(values[best]) ? best : kNoToken;
  }
}

void CpuQueue::sample(const SampleArgs& args) {
  check_sample(args);
  if (args.logits.rows == 0) return;
  const auto& settings = *reinterpret_cast<const SampleSettings*>(host(args.settings));
  const auto* keys = reinterpret_cast<const NoiseKey*>(host(args.keys));
  for (uint64_t row = 0; row < args.logits.rows; ++row) {
    const float* logits = floats(args.logits.data) + row * args.logits.stride;
    reinterpret_cast<uint32_t*>(host(args.ids))[row] = sample_row({logits, args.logits.cols}, settings, keys[row]);
  }
}

}  // namespace

std::unique_ptr<Queue> make_cpu_queue(const CpuOps& ops, Workers& workers, Precision precision) {
  return std::make_unique<CpuQueue>(ops, workers, precision);
}

}  // namespace dspack::kernels
