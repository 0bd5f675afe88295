#include "runtime/experts/resident_executor.h"

#include <algorithm>

#include "runtime/model/scratch.h"

namespace dspack::runtime {

namespace {

// For who listens to single experts: little memory beside what the run itself has taken. Of V3: 66 MB.
constexpr uint32_t kListenedTokens = 256;
constexpr uint32_t kListenedTile = 64;

kernels::ExpertsShape device_shape(const ExecutorShape& shape) {
  return {.hidden = shape.hidden,
          .inner = shape.expert_inner,
          .experts = shape.experts,
          .top_k = shape.top_k,
          .rows = shape.wave_tokens};
}

}  // namespace

Result<std::unique_ptr<ResidentExecutor>> ResidentExecutor::make(kernels::Device& device, kernels::Queue& queue,
                                                                 const ResidentExperts& experts,
                                                                 const ExecutorShape& shape) {
  DSPACK_CHECK(shape.wave_tokens > 0, "an executor without room");
  TRY_ASSIGN(auto scratch, device.allocate(scratch_bytes_for(device, shape)));
  return std::unique_ptr<ResidentExecutor>(new ResidentExecutor(device, queue, experts, shape, std::move(scratch)));
}

ResidentExecutor::ResidentExecutor(kernels::Device& device, kernels::Queue& queue, const ResidentExperts& experts,
                                   const ExecutorShape& shape, std::unique_ptr<kernels::Buffer> scratch)
    : device_(device), queue_(queue), experts_(experts), shape_(shape), scratch_(std::move(scratch)), store_(experts) {}

uint64_t ResidentExecutor::scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape) {
  return device.experts_scratch_bytes(device_shape(shape));
}

uint64_t ResidentExecutor::scratch_bytes() const {
  return scratch_->size_bytes() + (grouped_ ? grouped_->scratch_bytes() : 0);
}

ExpertStoreStats ResidentExecutor::stats() const {
  ExpertStoreStats stats = experts_.stats();
  for (size_t phase = 0; phase < kPhases; ++phase)
    stats.phases[phase].passes = passes_[phase];
  return stats;
}

void ResidentExecutor::begin_pass(const ExpertPass& pass) {
  ++passes_[static_cast<size_t>(pass.phase)];
  store_.begin_pass(pass);
  if (recorder_ != nullptr) recorder_->begin_pass(pass);
}

void ResidentExecutor::accept_drafts(uint32_t rows) {
  if (recorder_ != nullptr) recorder_->accept_drafts(rows);
}

Result<GroupedExecutor*> ResidentExecutor::one_by_one() {
  if (grouped_ == nullptr) {
    ExecutorShape shape = shape_;
    shape.wave_tokens = std::min(shape.wave_tokens, kListenedTokens);
    shape.tile_tokens = kListenedTile;
    TRY_ASSIGN(grouped_, GroupedExecutor::make(device_, queue_, store_, shape));
  }
  return grouped_.get();
}

Result<void> ResidentExecutor::record_routes(const RoutedTokens& tokens) {
  std::vector<uint32_t> chosen(size_t{tokens.x.rows} * shape_.top_k);
  queue_.download(std::as_writable_bytes(std::span(chosen)), tokens.ids);
  TRY(queue_.finish());
  return recorder_->record(tokens.layer, chosen);
}

Result<void> ResidentExecutor::run(const RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop) {
  if (recorder_ != nullptr) TRY(record_routes(tokens));
  if (tokens.trace.on()) {
    TRY_ASSIGN(GroupedExecutor * grouped, one_by_one());
    return grouped->run(tokens, y, stop);
  }
  for (uint32_t first = 0; first < tokens.x.rows; first += shape_.wave_tokens) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    const uint32_t count = std::min(shape_.wave_tokens, tokens.x.rows - first);
    const uint64_t routed = uint64_t{first} * shape_.top_k * sizeof(float);
    queue_.run_experts({.table = &experts_.table(tokens.layer),
                        .x = rows_of(tokens.x, first, count),
                        .ids = tokens.ids.at(routed),
                        .weights = tokens.weights.at(routed),
                        .top_k = shape_.top_k,
                        .scratch = {.buffer = scratch_.get(), .offset_bytes = 0},
                        .y = rows_of(y, first, count)});
  }
  if (tokens.meanwhile) tokens.meanwhile();
  return {};
}

}  // namespace dspack::runtime
