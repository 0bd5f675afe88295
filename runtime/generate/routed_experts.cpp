#include "runtime/generate/routed_experts.h"

namespace dspack::runtime {

namespace {

// In compute mode it depends on what is copied on the chance, and when, who computes an expert.
PrefetchMode vram_prefetch(const RoutedExperts::Options& options) {
  const bool must_repeat = options.miss.is_deterministic && options.miss.mode == MissMode::compute;
  return must_repeat ? PrefetchMode::off : options.store.prefetch;
}

DeviceExperts device_experts(const RoutedExperts::Options& options) {
  return {.shape = options.store.shape, .experts = options.shape.experts, .layers = options.store.layers};
}

}  // namespace

Result<RoutedExperts> RoutedExperts::make(const Parts& parts, const Options& options, const std::stop_token& stop) {
  RoutedExperts experts;
  if (options.placement == ExpertPlacement::streamed) {
    TRY_ASSIGN(experts.store_, StreamedStore::make(parts.device, parts.storage, options.store));
    TRY_ASSIGN(experts.grouped_, GroupedExecutor::make(parts.device, parts.queue, *experts.store_, options.shape));
    return experts;
  }
  if (options.placement == ExpertPlacement::tiered) {
    DSPACK_CHECK(parts.host != nullptr, "tiers without a host");
    StreamedStoreOptions store = options.store;
    store.memory = [&device = parts.device](uint64_t bytes) { return device.allocate_host(bytes); };
    TRY_ASSIGN(experts.store_, StreamedStore::make(*parts.host, parts.storage, store));
    TRY_ASSIGN(experts.tiered_,
               TieredExecutor::make(
                   {.device = parts.device, .queue = parts.queue, .host = *parts.host, .store = *experts.store_},
                   options.shape,
                   {.experts = device_experts(options),
                    .slots = options.vram_slots,
                    .policy = options.store.policy,
                    .seed = options.store.seed,
                    .prefetch = vram_prefetch(options)},
                   options.miss));
    return experts;
  }
  TRY_ASSIGN(experts.resident_, ResidentExperts::load(parts.device, parts.queue, parts.storage, device_experts(options),
                                                      parts.progress, stop));
  TRY_ASSIGN(experts.executor_, ResidentExecutor::make(parts.device, parts.queue, *experts.resident_, options.shape));
  return experts;
}

ExpertExecutor& RoutedExperts::executor() {
  if (executor_ != nullptr) return *executor_;
  if (tiered_ != nullptr) return *tiered_;
  return *grouped_;
}

void RoutedExperts::set_recorder(RouteRecorder* recorder) {
  if (executor_ != nullptr) return executor_->set_recorder(recorder);
  if (tiered_ != nullptr) return tiered_->set_recorder(recorder);
  grouped_->set_recorder(recorder);
}

ExpertStoreStats RoutedExperts::stats() const {
  if (executor_ != nullptr) return executor_->stats();
  return tiered_ != nullptr ? tiered_->stats() : store_->stats();
}

DecodeBound RoutedExperts::decode_bound() const {
  if (executor_ != nullptr) return {};
  return tiered_ != nullptr ? tiered_->decode_bound() : grouped_->decode_bound();
}

uint64_t RoutedExperts::scratch_bytes() const {
  if (executor_ != nullptr) return executor_->scratch_bytes();
  return tiered_ != nullptr ? tiered_->scratch_bytes() : grouped_->scratch_bytes();
}

}  // namespace dspack::runtime
