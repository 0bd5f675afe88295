#include "runtime/generate/routed_experts.h"

namespace dspack::runtime {

Result<RoutedExperts> RoutedExperts::make(const Parts& parts, ExpertPlacement placement,
                                          const StreamedStoreOptions& store, const ExecutorShape& shape,
                                          const std::stop_token& stop) {
  RoutedExperts experts;
  if (placement == ExpertPlacement::streamed) {
    TRY_ASSIGN(experts.store_, StreamedStore::make(parts.device, parts.storage, store));
    TRY_ASSIGN(experts.grouped_, GroupedExecutor::make(parts.device, parts.queue, *experts.store_, shape));
    return experts;
  }
  TRY_ASSIGN(experts.resident_,
             ResidentExperts::load(parts.device, parts.queue, parts.storage,
                                   {.shape = store.shape, .experts = shape.experts, .layers = store.layers},
                                   parts.progress, stop));
  TRY_ASSIGN(experts.executor_, ResidentExecutor::make(parts.device, parts.queue, *experts.resident_, shape));
  return experts;
}

ExpertExecutor& RoutedExperts::executor() {
  if (executor_ != nullptr) return *executor_;
  return *grouped_;
}

void RoutedExperts::set_recorder(RouteRecorder* recorder) {
  if (executor_ != nullptr) return executor_->set_recorder(recorder);
  grouped_->set_recorder(recorder);
}

ExpertStoreStats RoutedExperts::stats() const {
  return executor_ != nullptr ? executor_->stats() : store_->stats();
}

DecodeBound RoutedExperts::decode_bound() const {
  return executor_ != nullptr ? DecodeBound() : grouped_->decode_bound();
}

uint64_t RoutedExperts::scratch_bytes() const {
  return executor_ != nullptr ? executor_->scratch_bytes() : grouped_->scratch_bytes();
}

}  // namespace dspack::runtime
