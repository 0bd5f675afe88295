#include "runtime/model/route_predictor.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "runtime/model/layer.h"

namespace dspack::runtime {

namespace {

// More rows would predict more experts than can be read in time.
constexpr uint32_t kMaxRows = 4;

// The last of the top k are the least certain; published prefetchers read 4 to 6 of 8.
uint32_t sure_ones(uint32_t top_k) {
  return top_k - top_k / 4;
}

/// From ids [rows, top_k], best first in each row: the likeliest expert of every row, then the second likeliest, and so
/// on, without repetition.
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

RoutePredictor::RoutePredictor(const ModelConfig& config, const Residual& residual, ScratchPlan& plan)
    : config_(config),
      router_(config),
      stream_at_(plan.add(uint64_t{kMaxRows} * Residual::width(config))),
      mix_at_(plan.add(residual.mix_values(kMaxRows))),
      hidden_at_(plan.add(uint64_t{kMaxRows} * config.hidden)),
      logits_at_(plan.add(uint64_t{kMaxRows} * config.experts)),
      ids_at_(plan.add(uint64_t{kMaxRows} * config.top_k)),
      weights_at_(plan.add(uint64_t{kMaxRows} * config.top_k)) {}

uint64_t RoutePredictor::forecast_bytes() const {
  return uint64_t{kMaxRows} * config_.top_k * sizeof(uint32_t);
}

ExpertForecast RoutePredictor::predict(kernels::Queue& queue, const Memory& memory, const Residual& residual,
                                       const Known& known, const LayerWeights& next) const {
  const uint32_t rows = std::min(known.stream.rows, kMaxRows);
  const auto place = [&](uint64_t offset) { return kernels::Slice{.buffer = &memory.scratch, .offset_bytes = offset}; };
  const kernels::Rows hidden{.data = place(hidden_at_), .rows = rows, .cols = config_.hidden, .stride = config_.hidden};
  const uint32_t width = Residual::width(config_);
  const kernels::Rows stream{.data = place(stream_at_), .rows = rows, .cols = width, .stride = width};
  queue.copy(stream.data, known.stream.data, uint64_t{rows} * width * sizeof(float));
  if (known.shared.rows > 0) {
    residual.join({.queue = queue, .mix = known.mix, .weights = known.layer.mlp_mix}, stream,
                  rows_of(known.shared, 0, rows));
  }
  const kernels::Rows read =
      residual.read({.queue = queue, .mix = place(mix_at_), .weights = next.mlp_mix}, stream, hidden);
  queue.rms_norm(read, next.mlp_norm, config_.norm_epsilon, hidden);
  router_.route(queue, next.moe.router, hidden, {},
                {.logits = place(logits_at_), .ids = place(ids_at_), .weights = place(weights_at_)});
  const size_t count = size_t{rows} * config_.top_k;
  queue.copy({.buffer = &memory.forecast, .offset_bytes = 0}, place(ids_at_), count * sizeof(uint32_t));
  const auto* ids = reinterpret_cast<const uint32_t*>(kernels::host_bytes(memory.forecast).data());
  return {.computed = queue.mark(),
          .experts = [ids = std::span(ids, count), top_k = config_.top_k] { return likely_ones(ids, top_k); }};
}

}  // namespace dspack::runtime
