#include "runtime/experts/expert_tracer.h"

#include <algorithm>

#include "runtime/weights/scratch.h"

namespace dspack::runtime {

namespace {

// Rows per tile: needs little memory beside the run's. V3: 5 MB.
constexpr uint32_t kTracedRows = 64;

}  // namespace

Result<std::unique_ptr<ExpertTracer>> ExpertTracer::make(kernels::Device& device, kernels::Queue& queue,
                                                         uint32_t hidden, uint32_t inner) {
  std::unique_ptr<ExpertTracer> tracer(new ExpertTracer(queue, hidden, inner));
  ScratchPlan plan;
  const auto place = [&](kernels::Rows& rows, uint32_t cols) {
    rows = {.data = {.buffer = nullptr, .offset_bytes = plan.add(uint64_t{kTracedRows} * cols)},
            .rows = kTracedRows,
            .cols = cols,
            .stride = cols};
  };
  place(tracer->input_, hidden);
  place(tracer->gate_, inner);
  place(tracer->up_, inner);
  place(tracer->output_, hidden);
  TRY_ASSIGN(tracer->scratch_, device.allocate(plan.size_bytes()));
  for (kernels::Rows* rows : {&tracer->input_, &tracer->gate_, &tracer->up_, &tracer->output_})
    rows->data.buffer = tracer->scratch_.get();
  return tracer;
}

void ExpertTracer::begin_layer(const TraceScope& scope, std::span<const uint32_t> chosen) {
  scope_ = scope;
  tokens_.assign(chosen.empty() ? 0 : size_t{std::ranges::max(chosen)} + 1, 0);
  for (const uint32_t expert : chosen)
    ++tokens_[expert];
}

void ExpertTracer::compute(const ExpertWave& wave, const RoutedGroup& group, const ExpertWeights& weights) {
  const uint32_t expert = group.demand.expert.value;
  TraceScope scope = scope_.child(std::to_string(expert));
  scope.expect(tokens_.at(expert));
  const std::span<const uint32_t> all = group.parts;
  for (size_t first = 0; first < all.size(); first += kTracedRows) {
    const auto parts = all.subspan(first, std::min<size_t>(kTracedRows, all.size() - first));
    const auto count = static_cast<uint32_t>(parts.size());
    std::vector<uint32_t> tokens(parts.begin(), parts.end());
    for (uint32_t& token : tokens)
      token /= wave.top_k;
    const kernels::Rows input = rows_of(input_, 0, count), gate = rows_of(gate_, 0, count);
    const kernels::Rows up = rows_of(up_, 0, count), output = rows_of(output_, 0, count);
    queue_.gather_rows(input, wave.x, tokens);
    scope.input(input);
    apply(weights.gate, queue_, input, gate, scope, "gate_proj");
    apply(weights.up, queue_, input, up, scope, "up_proj");
    queue_.silu_multiply(gate, up, weights.limit);
    apply(weights.down, queue_, gate, output, scope, "down_proj");
    scope.output(output);
    queue_.scatter_rows(wave.parts, output, parts);
  }
}

}  // namespace dspack::runtime
