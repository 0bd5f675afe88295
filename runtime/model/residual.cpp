#include "runtime/model/residual.h"

namespace dspack::runtime {

namespace {

class PlainResidual final : public Residual {
 public:
  [[nodiscard]] uint64_t mix_values(uint32_t /*rows*/) const override { return 0; }
  [[nodiscard]] kernels::Slice mix_in(kernels::Buffer& /*scratch*/, uint32_t /*first*/) const override { return {}; }
  void begin(kernels::Queue& /*queue*/, const kernels::Rows& /*stream*/) const override {}
  [[nodiscard]] kernels::Rows read(const Context& /*context*/, const kernels::Rows& stream,
                                   const kernels::Rows& /*place*/) const override {
    return stream;
  }
  [[nodiscard]] kernels::Rows sum_of(const kernels::Rows& stream) const override { return stream; }
  void join(const Context& context, const kernels::Rows& stream, const kernels::Rows& y) const override {
    context.queue.add(stream, y);
  }
  [[nodiscard]] kernels::Rows end(const Context& /*context*/, const kernels::Rows& stream,
                                  const kernels::Rows& /*place*/) const override {
    return stream;
  }
};

class MixedResidual final : public Residual {
 public:
  MixedResidual(const ModelConfig& config, uint32_t max_rows, ScratchPlan& plan)
      : config_(config), count_(config.streams->count), mix_at_(plan.add(mix_values(max_rows))) {}

  [[nodiscard]] uint64_t mix_values(uint32_t rows) const override { return uint64_t{rows} * count_ * (2 + count_); }
  [[nodiscard]] kernels::Slice mix_in(kernels::Buffer& scratch, uint32_t first) const override {
    return {.buffer = &scratch, .offset_bytes = mix_at_ + mix_values(first) * sizeof(float)};
  }
  void begin(kernels::Queue& queue, const kernels::Rows& stream) const override {
    for (uint32_t row = 0; row < stream.rows; ++row) {
      const kernels::Slice first = rows_of(stream, row, 1).data;
      for (uint32_t i = 1; i < count_; ++i)
        queue.copy(first.at(uint64_t{i} * config_.hidden * sizeof(float)), first, config_.hidden * sizeof(float));
    }
  }
  [[nodiscard]] kernels::Rows read(const Context& context, const kernels::Rows& stream,
                                   const kernels::Rows& place) const override {
    return read_mixture(context, stream, place, config_.streams->rounds);
  }
  [[nodiscard]] kernels::Rows sum_of(const kernels::Rows& /*stream*/) const override { return {}; }
  void join(const Context& context, const kernels::Rows& stream, const kernels::Rows& y) const override {
    context.queue.join_streams({.streams = stream, .mix = context.mix, .y = y, .count = count_});
  }
  [[nodiscard]] kernels::Rows end(const Context& context, const kernels::Rows& stream,
                                  const kernels::Rows& place) const override {
    return read_mixture(context, stream, place, 0);
  }

 private:
  [[nodiscard]] kernels::Rows read_mixture(const Context& context, const kernels::Rows& stream,
                                           const kernels::Rows& place, uint32_t rounds) const {
    const uint32_t values = context.weights.fn.weight().out;
    context.weights.fn.apply(context.queue, stream,
                             {.data = context.mix, .rows = stream.rows, .cols = values, .stride = values});
    context.queue.read_streams({.streams = stream,
                                .logits = context.mix,
                                .base = context.weights.base,
                                .scale = context.weights.scale,
                                .y = place,
                                .count = count_,
                                .rounds = rounds,
                                .norm_epsilon = config_.norm_epsilon,
                                .epsilon = config_.streams->epsilon});
    return place;
  }

  const ModelConfig& config_;
  uint32_t count_;
  uint64_t mix_at_;  // in the scratch buffer, for all rows of a pass
};

}  // namespace

std::unique_ptr<Residual> Residual::make(const ModelConfig& config, uint32_t max_rows, ScratchPlan& plan) {
  if (!config.streams) return std::make_unique<PlainResidual>();
  return std::make_unique<MixedResidual>(config, max_rows, plan);
}

Result<void> Residual::add_weights(WeightGroup& group, const ModelConfig& config, MixWeights& weights,
                                   const std::string& name, Mixture mixture) {
  if (!config.streams) return {};
  const uint32_t count = config.streams->count;
  const uint32_t values = mixture == Mixture::at_end ? count : count * (2 + count);
  TRY(group.add_linear(&weights.fn, name + "_fn", values, width(config)));
  TRY(group.add_vector(&weights.base, name + "_base", values));
  return group.add_vector(&weights.scale, name + "_scale", mixture == Mixture::at_end ? 1 : 3);
}

}  // namespace dspack::runtime
