#include "runtime/experts/backends/further_device.h"

#include <algorithm>
#include <iterator>

namespace dspack::runtime {

namespace {

uint64_t kernel_scratch(const kernels::Device& device, const ExecutorShape& shape) {
  return device.experts_scratch_bytes({.hidden = shape.hidden,
                                       .inner = shape.expert_inner,
                                       .experts = shape.experts,
                                       .top_k = shape.top_k,
                                       .rows = shape.wave_tokens,
                                       .parts_only = true});
}

}  // namespace

Result<std::unique_ptr<FurtherDevice>> FurtherDevice::make(const RowExchange::End& first, kernels::Device& device,
                                                           const DeviceBackend::Share& share,
                                                           const format::Checkpoint& checkpoint, ExpertStore& store,
                                                           const ExecutorShape& shape,
                                                           const DeviceCacheOptions& options, const MissOptions& miss) {
  std::unique_ptr<FurtherDevice> made(new FurtherDevice);
  made->queue_ = device.make_queue();
  TRY_ASSIGN(made->scratch_, device.allocate(kernel_scratch(device, shape)));
  TRY_ASSIGN(made->exchange_, RowExchange::make(first, {.device = device, .queue = *made->queue_}, shape));
  TRY_ASSIGN(made->cache_, DeviceCache::make(device, checkpoint, store, options));
  made->inner_ = std::make_unique<DeviceBackend>(
      *made->queue_, kernels::Slice{.buffer = made->scratch_.get(), .offset_bytes = 0}, *made->cache_, miss, share);
  return made;
}

// Reads of the exchange on the first queue have run: this object's owner has synchronised that queue.
FurtherDevice::~FurtherDevice() {
  queue_->synchronize();
}

uint64_t FurtherDevice::scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape) {
  return kernel_scratch(device, shape) + RowExchange::device_bytes(shape);
}

ExpertWave FurtherDevice::seen(const ExpertWave& wave) {
  ExpertWave own = wave;
  own.x = exchange_->x();
  own.parts = exchange_->parts();
  own.course = &course_;
  return own;
}

// Waits only after a failed pass: otherwise the first device has ended the previous pass, and so has this one.
void FurtherDevice::begin_pass(const ExpertPass& pass) {
  queue_->synchronize();
  inner_->begin_pass(pass);
}

void FurtherDevice::begin_course(Phase phase) {
  computed_.clear();
  course_ = {.phase = phase};
  course_.all.begin = queue_->mark();
}

void FurtherDevice::compute_held(const ExpertWave& wave, const RouteIds& ids) {
  queue_->wait(*wave.course->all.begin);
  begin_course(wave.phase);
  inner_->compute_held(seen(wave), ids);
}

void FurtherDevice::begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) {
  has_held_ = inner_->has_held();
  if (!has_held_) begin_course(wave.phase);
  if (wave.tracer != nullptr) return;  // traced experts are computed on the first device
  const std::vector<size_t> before = missing;
  inner_->begin_wave(seen(wave), missing);
  std::ranges::set_difference(before, missing, std::back_inserter(computed_));
}

void FurtherDevice::take(const ExpertWave& wave, size_t group, ExpertLease lease) {
  wave.course->last_on_host = 0;
  computed_.push_back(group);
  inner_->take(seen(wave), group, std::move(lease));
}

void FurtherDevice::enqueue_taken(const ExpertWave& wave) {
  inner_->enqueue_taken(seen(wave));
}

void FurtherDevice::end_wave(const ExpertWave& wave) {
  if (computed_.empty()) {
    if (has_held_) exchange_->meet();
    return;
  }
  std::vector<uint32_t> which;
  for (const size_t group : computed_)
    which.insert(which.end(), wave.groups[group].parts.begin(), wave.groups[group].parts.end());
  course_.all.end = queue_->mark();  // reached before the first queue has the results
  exchange_->bring(wave.parts, which);
  wave.course->others.push_back(std::move(course_));
}

}  // namespace dspack::runtime
