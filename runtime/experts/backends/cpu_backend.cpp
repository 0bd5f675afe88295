#include "runtime/experts/backends/cpu_backend.h"

#include <algorithm>

#include "format/base/check.h"
#include "format/base/seconds.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/expert_tracer.h"

namespace dspack::runtime {

namespace {

// The most rows of a pass whose experts the CPU computes beside a device: a decode pass has no more.
constexpr uint32_t kMaxHostRows = 16;
// The most experts found in memory that are computed together: as many as a decoded token has. They hold their slots
// until then.
constexpr size_t kMaxTogether = 8;

uint32_t host_rows(const ExecutorShape& shape) {
  return std::min(shape.wave_tokens, kMaxHostRows);
}

uint64_t row_bytes(uint32_t hidden) {
  return uint64_t{hidden} * sizeof(float);
}

uint64_t staging_bytes(const ExecutorShape& shape) {
  return row_bytes(shape.hidden) * host_rows(shape) * (1 + uint64_t{shape.top_k});
}

uint64_t host_scratch_bytes(const kernels::Device& host, const ExecutorShape& shape) {
  return host.experts_scratch_bytes({.hidden = shape.hidden,
                                     .inner = shape.expert_inner,
                                     .experts = 1,
                                     .top_k = shape.top_k,
                                     .rows = host_rows(shape),
                                     .parts_only = true});
}

}  // namespace

Result<std::unique_ptr<CpuBackend>> CpuBackend::beside(kernels::Device& device, kernels::Queue& queue,
                                                       kernels::Device& host, const ExecutorShape& shape,
                                                       const MissOptions& miss) {
  TRY_ASSIGN(auto staging, device.allocate_host(staging_bytes(shape)));
  TRY_ASSIGN(auto scratch, host.allocate(host_scratch_bytes(host, shape)));
  auto made = std::make_unique<CpuBackend>(queue, kernels::Slice{.buffer = scratch.get(), .offset_bytes = 0});
  made->miss_ = miss;
  made->hidden_ = shape.hidden;
  made->top_k_ = shape.top_k;
  made->max_rows_ = host_rows(shape);
  made->own_queue_ = host.make_queue();
  made->staging_ = std::move(staging);
  made->own_scratch_ = std::move(scratch);
  return made;
}

uint64_t CpuBackend::bytes_beside(const kernels::Device& host, const ExecutorShape& shape) {
  return staging_bytes(shape) + host_scratch_bytes(host, shape);
}

bool CpuBackend::may_share() const {
  return is_beside() && pass_.phase == Phase::decode && pass_.rows <= kMaxHostRows &&
         miss_.effective() != MissMode::move;
}

void CpuBackend::before_routes(const kernels::Rows& x) {
  if (!may_share()) return;
  DSPACK_CHECK(x.rows <= max_rows_ && x.stride == x.cols && x.cols == hidden_, "an input of another shape");
  input_rows_ = x.rows;
  queue_.copy(staged_rows(0, x.rows).data, x.data, row_bytes(hidden_) * x.rows);
}

void CpuBackend::begin_wave(const ExpertWave& /*wave*/, std::vector<size_t>& /*missing*/) {
  waiting_.clear();  // left by a failed wave
  backlog_ = 0;
}

Eta CpuBackend::eta(const ExpertWave& wave, size_t group) {
  if (!is_beside()) return {.kind = Eta::Kind::always};
  if (!may_share() || wave.tracer != nullptr) return {.kind = Eta::Kind::never};
  return Eta::after(backlog_, rate_.seconds(wave.expert_bytes, wave.groups[group].demand.rows));
}

void CpuBackend::take(const ExpertWave& wave, size_t group, ExpertLease lease) {
  if (is_beside()) {
    backlog_ += rate_.seconds(wave.expert_bytes, wave.groups[group].demand.rows).value_or(0);
    waiting_.push_back({.group = group, .lease = std::move(lease)});
    return;
  }
  // Experts that were just read are computed at once: the next ones may need their slots.
  const bool is_alone = wave.tracer != nullptr || lease.was_missing();
  if (!is_alone) {
    waiting_.push_back({.group = group, .lease = std::move(lease)});
    if (waiting_.size() >= kMaxTogether) compute_waiting(wave);
    return;
  }
  LayerCourse::Span computing{.begin = queue_.mark(), .end = {}};
  compute(wave, wave.groups[group], lease.weights());
  queue_.synchronize();  // the lease ends here
  computing.end = queue_.mark();
  if (lease.was_missing()) {
    wave.course->misses.push_back({.arrival = nullptr, .computing = std::move(computing)});
  } else {
    wave.course->hits.push_back(std::move(computing));
  }
}

void CpuBackend::enqueue_taken(const ExpertWave& wave) {
  if (!is_beside() && !waiting_.empty()) compute_waiting(wave);
}

void CpuBackend::compute_waiting(const ExpertWave& wave) {
  LayerCourse::Span computing{.begin = queue_.mark(), .end = {}};
  std::vector<kernels::ExpertMatrices> matrices;
  std::vector<kernels::ExpertGroup> groups;
  for (const Computed& one : waiting_) {
    groups.push_back({.entry = static_cast<uint32_t>(matrices.size()), .parts = wave.groups[one.group].parts});
    matrices.push_back(one.lease.weights().matrices());
  }
  queue_.run_expert_parts({.experts = matrices,
                           .x = wave.x,
                           .groups = groups,
                           .top_k = wave.top_k,
                           .scratch = scratch_,
                           .parts = wave.parts});
  queue_.synchronize();
  waiting_.clear();  // the leases end here
  computing.end = queue_.mark();
  wave.course->hits.push_back(std::move(computing));
}

void CpuBackend::compute(const ExpertWave& wave, const RoutedGroup& group, const ExpertWeights& weights) {
  if (wave.tracer != nullptr) return wave.tracer->compute(wave, group, weights);
  const kernels::ExpertMatrices matrices = weights.matrices();
  const kernels::ExpertGroup one{.entry = 0, .parts = group.parts};
  const uint64_t parts_at = row_bytes(hidden_) * max_rows_;
  kernels::Queue& queue = is_beside() ? *own_queue_ : queue_;
  queue.run_expert_parts({.experts = {&matrices, 1},
                          .x = is_beside() ? staged_rows(0, input_rows_) : wave.x,
                          .groups = {&one, 1},
                          .top_k = wave.top_k,
                          .scratch = scratch_,
                          .parts = is_beside() ? staged_rows(parts_at, input_rows_ * top_k_) : wave.parts});
}

kernels::Rows CpuBackend::staged_rows(uint64_t offset, uint32_t rows) const {
  return {.data = {.buffer = staging_.get(), .offset_bytes = offset}, .rows = rows, .cols = hidden_, .stride = hidden_};
}

std::optional<ExpertBackend::Computed> CpuBackend::compute_next(const ExpertWave& wave) {
  if (!is_beside() || waiting_.empty()) return std::nullopt;
  Computed next = std::move(waiting_.front());
  waiting_.pop_front();
  const auto start = std::chrono::steady_clock::now();
  const RoutedGroup& group = wave.groups[next.group];
  compute(wave, group, next.lease.weights());
  own_queue_->synchronize();
  const uint64_t parts_at = row_bytes(hidden_) * max_rows_;
  for (const uint32_t part : group.parts) {
    queue_.copy(wave.parts.data.at(uint64_t{part} * wave.parts.stride * sizeof(float)),
                staged_rows(parts_at + row_bytes(hidden_) * part, 1).data, row_bytes(hidden_));
  }
  const double seconds = seconds_since(start);
  backlog_ -= std::min(backlog_, rate_.seconds(wave.expert_bytes, group.demand.rows).value_or(0));
  rate_.learn(wave.expert_bytes, group.demand.rows, seconds);
  wave.course->host_seconds += seconds;
  wave.course->last_on_host = seconds;
  return next;
}

void CpuBackend::add_to(ExpertStoreStats& stats) const {
  if (stats.vram) stats.vram->cpu_bytes_per_second = rate_.bytes_per_second();
}

}  // namespace dspack::runtime
