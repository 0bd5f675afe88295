#include "runtime/model/route_predictor.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "runtime/model/layer.h"

namespace dspack::runtime {

namespace {

// More would ask for more experts than can be read before they are wanted.
constexpr uint32_t kMostRows = 4;

// The last of the top k are the least certain; published prefetchers read 4 to 6 of 8.
uint32_t sure_ones(uint32_t top_k) {
  return top_k - top_k / 4;
}

/// Of ids [rows, top_k], best first: the likeliest of all rows, then the next.
std::vector<ExpertId> likely_ones(std::span<const uint32_t> ids, uint32_t top_k) {
  std::vector<ExpertId> likely;
  for (uint32_t rank = 0; rank < sure_ones(top_k); ++rank) {
    for (size_t first = 0; first < ids.size(); first += top_k) {
      const ExpertId expert(ids[first + rank]);
      if (std::ranges::find(likely, expert) == likely.end()) likely.push_back(expert);
    }
  }
  return likely;
}

}  // namespace

RoutePredictor::RoutePredictor(const ModelConfig& config, ScratchPlan& plan)
    : config_(config),
      hidden_at_(plan.add(uint64_t{kMostRows} * config.hidden)),
      logits_at_(plan.add(uint64_t{kMostRows} * config.experts)),
      ids_at_(plan.add(uint64_t{kMostRows} * config.top_k)),
      weights_at_(plan.add(uint64_t{kMostRows} * config.top_k)) {}

uint64_t RoutePredictor::forecast_bytes() const {
  return uint64_t{kMostRows} * config_.top_k * sizeof(uint32_t);
}

ExpertForecast RoutePredictor::predict(kernels::Queue& queue, const Memory& memory, const LayerWeights& next,
                                       const kernels::Rows& residual, const kernels::Rows& shared) const {
  const uint32_t rows = std::min(residual.rows, kMostRows);
  const auto place = [&](uint64_t offset) { return kernels::Slice{.buffer = &memory.scratch, .offset_bytes = offset}; };
  const kernels::Rows hidden{.data = place(hidden_at_), .rows = rows, .cols = config_.hidden, .stride = config_.hidden};
  queue.copy(hidden.data, residual.data, uint64_t{rows} * config_.hidden * sizeof(float));
  if (shared.rows > 0) queue.add(hidden, rows_of(shared, 0, rows));
  queue.rms_norm(hidden, next.mlp_norm, config_.norm_epsilon, hidden);
  next.moe.router.apply(queue, hidden,
                        {.data = place(logits_at_), .rows = rows, .cols = config_.experts, .stride = config_.experts});
  queue.route(router_args(config_, next.moe,
                          {.logits = place(logits_at_), .ids = place(ids_at_), .weights = place(weights_at_)}, rows));
  const size_t count = size_t{rows} * config_.top_k;
  queue.copy({.buffer = &memory.forecast, .offset_bytes = 0}, place(ids_at_), count * sizeof(uint32_t));
  const auto* ids = reinterpret_cast<const uint32_t*>(kernels::host_bytes(memory.forecast).data());
  return {.computed = queue.mark(),
          .experts = [ids = std::span(ids, count), top_k = config_.top_k] { return likely_ones(ids, top_k); }};
}

}  // namespace dspack::runtime
