// Whole layers of DeepSeek-V3 as a decode step runs them, one token: what is between the products counts as well. The
// operations are those of runtime/model/layer.cpp, mla_attention.cpp and moe.cpp with everything resident; attention
// and shared experts are those of four layers in turn, all of which share one table of routed experts, of which the
// router picks others in each.
#include <fmt/format.h>

#include <array>

#include "tests/bench/cuda_bench_weights.h"

namespace dspack::bench {
namespace {

using kernels::Rows;
using kernels::Slice;

struct Sizes {
  uint32_t hidden, q_rank, heads, shared, top_k;
  static constexpr uint32_t kLatent = 512, kNope = 128, kRope = 64, kValue = 128, kLayers = 4;
};

/// A weight of each of the four layers.
class LayerWeights {
 public:
  LayerWeights(Memory& memory, const Shape& shape)
      : shape_(shape),
        data_(memory, shape.dtype, uint64_t{shape.out} * shape.in,
              static_cast<uint64_t>(Sizes::kLayers * shape.bytes())),
        scale_(scales(memory, shape.out, shape.in)) {}
  [[nodiscard]] kernels::Weight of(uint32_t layer) const { return weight_of(shape_, data_.at(layer), scale_); }
  [[nodiscard]] double bytes() const { return shape_.bytes(); }
  [[nodiscard]] double values() const { return shape_.values(); }

 private:
  Shape shape_;
  Rotation data_;
  Slice scale_;
};

class Layers {
 public:
  Layers(CudaBench& bench, const Sizes& sizes, uint32_t positions)
      : bench_(bench),
        sizes_(sizes),
        positions_(positions),
        memory_(bench.memory()),
        cache_(bench.options().cuda.precision == kernels::Precision::fp8 ? Dtype::f8_e4m3 : Dtype::bf16),
        caches_(memory_, cache_, positions * row_bytes() * 8 / bits_of(cache_),
                Sizes::kLayers * positions * row_bytes()),
        experts_(bench, memory_) {
    const uint32_t at = positions - 1;
    position_ = {.value = memory_.upload(std::as_bytes(std::span(&at, 1))), .limit = positions};
  }

  [[nodiscard]] double seconds() {
    return bench_.seconds_per_launch(Sizes::kLayers * 2, [&](uint32_t layer) {
      attention(layer);
      experts(layer);
    });
  }
  [[nodiscard]] Work work() const {
    Work work{.bytes = sizes_.top_k * experts_.values_of_one(),
              .operations = 2 * sizes_.top_k * experts_.values_of_one()};
    for (const LayerWeights* weight :
         {&q_a_, &q_b_, &kv_a_, &kv_b_, &o_, &router_, &shared_gate_, &shared_up_, &shared_down_}) {
      work.bytes += weight->bytes();
      work.operations += 2 * weight->values();
    }
    work.bytes += static_cast<double>(positions_ * row_bytes());
    work.operations += 2.0 * positions_ * sizes_.heads * (2 * Sizes::kLatent + Sizes::kRope);
    return work;
  }
  [[nodiscard]] uint32_t expert_count() const { return experts_.count(); }
  [[nodiscard]] Dtype cache() const { return cache_; }

 private:
  static constexpr kernels::LatentShape kRow{.latent_dim = Sizes::kLatent, .rope_dim = Sizes::kRope};

  kernels::Queue& queue() { return bench_.queue(); }
  LayerWeights fp8(uint32_t out, uint32_t in) { return {memory_, {"", out, in, Dtype::f8_e4m3}}; }

  [[nodiscard]] uint64_t row_bytes() const { return kernels::cache_row_bytes(cache_, kRow); }

  void attention(uint32_t layer) {
    constexpr uint32_t kKey = Sizes::kNope + Sizes::kRope, kHeadRows = Sizes::kNope + Sizes::kValue;
    const kernels::Weight kv_a = kv_a_.of(layer), q_a = q_a_.of(layer), q_b = q_b_.of(layer), o = o_.of(layer);
    queue().rms_norm_for(std::array{kv_a, q_a}, x_, gain_, 1e-6F, normed_);
    const std::array low_rank{kernels::Product{.weight = kv_a, .y = kv_}, kernels::Product{.weight = q_a, .y = q_low_}};
    queue().linear_each(low_rank, normed_);
    queue().finish_latents({.rows = kv_,
                            .shape = kRow,
                            .gain = gain_,
                            .query = q_low_,
                            .query_gain = gain_,
                            .epsilon = 1e-6F,
                            .rope = rope(kv_.data.at(Sizes::kLatent * sizeof(float)), 1, Sizes::kRope),
                            .cache = caches_.at(layer),
                            .cache_dtype = cache_},
                           &q_b);
    queue().linear(q_b, q_low_, q_);
    kernels::HeadLinearArgs heads{.weight = kv_b_.of(layer),
                                  .heads = sizes_.heads,
                                  .head_rows = kHeadRows,
                                  .first_row = 0,
                                  .rows_used = Sizes::kNope,
                                  .x = q_.data,
                                  .x_row_stride = q_.stride,
                                  .x_head_stride = kKey,
                                  .y = absorbed_.data,
                                  .y_row_stride = absorbed_.stride,
                                  .y_head_stride = Sizes::kLatent,
                                  .rows = 1};
    queue().absorb(rope(q_.data.at(Sizes::kNope * sizeof(float)), sizes_.heads, kKey), heads);
    queue().mla_attend({.query_latent = absorbed_.data,
                        .query_rope = q_.data.at(Sizes::kNope * sizeof(float)),
                        .cache = caches_.at(layer),
                        .out = attended_.data,
                        .rows = 1,
                        .heads = sizes_.heads,
                        .latent_dim = Sizes::kLatent,
                        .rope_dim = Sizes::kRope,
                        .rope_row_stride = q_.stride,
                        .rope_head_stride = kKey,
                        .scale = 0.0722F,
                        .cache_dtype = cache_,
                        .live = position_});
    heads.first_row = Sizes::kNope;
    heads.rows_used = Sizes::kValue;
    heads.x = attended_.data;
    heads.x_row_stride = attended_.stride;
    heads.x_head_stride = Sizes::kLatent;
    heads.y = values_.data;
    heads.y_row_stride = values_.stride;
    heads.y_head_stride = Sizes::kValue;
    queue().head_linear(heads);
    queue().add_linear(o, values_, x_, normed_);
  }

  void experts(uint32_t layer) {
    const kernels::Weight router = router_.of(layer);
    const kernels::MlpArgs shared{
        .weights = {.gate = shared_gate_.of(layer), .up = shared_up_.of(layer), .down = shared_down_.of(layer)},
        .x = normed_,
        .inner = gate_,
        .scratch = up_,
        .y = shared_};
    queue().rms_norm_for(std::array{router, shared.weights.gate}, x_, gain_, 1e-6F, normed_);
    const bool has_groups = experts_.count() % 64 == 0;
    queue().route_rows(router, normed_,
                       {.logits = scores_.data,
                        .bias = bias_,
                        .ids = ids_,
                        .weights = weights_,
                        .rows = 1,
                        .experts = experts_.count(),
                        .top_k = sizes_.top_k,
                        .groups = has_groups ? 8U : 1U,
                        .groups_kept = has_groups ? 4U : 1U,
                        .scale = 2.5F});
    queue().add_moe({.experts = {.table = &experts_.table(),
                                 .x = normed_,
                                 .ids = ids_,
                                 .weights = weights_,
                                 .top_k = sizes_.top_k,
                                 .scratch = scratch_,
                                 .y = routed_},
                     .shared = &shared,
                     .residual = x_});
  }

  kernels::RopeArgs rope(Slice data, uint32_t heads, uint32_t head_stride) {
    return {.data = data,
            .rows = 1,
            .heads = heads,
            .dim = Sizes::kRope,
            .head_stride = head_stride,
            .row_stride = heads * head_stride,
            .cos_sin = cos_sin_,
            .live = position_};
  }

  CudaBench& bench_;
  Sizes sizes_;
  uint32_t positions_;
  Memory memory_;
  Dtype cache_;  // FP8 as --precision fp8 has it, else BF16
  Rotation caches_;
  RoutedExperts experts_;
  kernels::LivePosition position_;
  LayerWeights q_a_ = fp8(sizes_.q_rank, sizes_.hidden);
  LayerWeights q_b_ = fp8(sizes_.heads * (Sizes::kNope + Sizes::kRope), sizes_.q_rank);
  LayerWeights kv_a_ = fp8(Sizes::kLatent + Sizes::kRope, sizes_.hidden);
  LayerWeights kv_b_ = fp8(sizes_.heads * (Sizes::kNope + Sizes::kValue), Sizes::kLatent);
  LayerWeights o_ = fp8(sizes_.hidden, sizes_.heads* Sizes::kValue);
  LayerWeights router_{memory_, {"", experts_.count(), sizes_.hidden, Dtype::bf16}};
  LayerWeights shared_gate_ = fp8(sizes_.shared, sizes_.hidden);
  LayerWeights shared_up_ = fp8(sizes_.shared, sizes_.hidden);
  LayerWeights shared_down_ = fp8(sizes_.hidden, sizes_.shared);
  Rows x_ = memory_.rows(1, sizes_.hidden), normed_ = memory_.rows(1, sizes_.hidden);
  Rows routed_ = memory_.rows(1, sizes_.hidden), shared_ = memory_.rows(1, sizes_.hidden);
  Rows q_low_ = memory_.rows(1, sizes_.q_rank);
  Rows q_ = memory_.rows(1, sizes_.heads*(Sizes::kNope + Sizes::kRope));
  Rows kv_ = memory_.rows(1, Sizes::kLatent + Sizes::kRope);
  Rows absorbed_ = memory_.rows(1, sizes_.heads* Sizes::kLatent);
  Rows attended_ = memory_.rows(1, sizes_.heads* Sizes::kLatent);
  Rows values_ = memory_.rows(1, sizes_.heads* Sizes::kValue);
  Rows scores_ = memory_.rows(1, experts_.count());
  Rows gate_ = memory_.rows(1, sizes_.shared), up_ = memory_.rows(1, sizes_.shared);
  Slice gain_ = memory_.numbers(Dtype::f32, 8192);
  Slice bias_ = memory_.numbers(Dtype::f32, experts_.count());
  Slice cos_sin_ = memory_.numbers(Dtype::f32, uint64_t{positions_} * Sizes::kRope);
  Slice ids_ = memory_.uninitialised(sizes_.top_k * sizeof(uint32_t));
  Slice weights_ = memory_.uninitialised(sizes_.top_k * sizeof(float));
  Slice scratch_ = experts_.make_scratch(bench_, memory_, 1, sizes_.top_k);
};

}  // namespace

void measure_layers(CudaBench& bench) {
  const Sizes sizes = bench.options().quick
                          ? Sizes{.hidden = 128, .q_rank = 64, .heads = 2, .shared = 64, .top_k = 2}
                          : Sizes{.hidden = 7168, .q_rank = 1536, .heads = 128, .shared = 2048, .top_k = 8};
  const std::vector<uint32_t> contexts =
      bench.options().quick ? std::vector<uint32_t>{40} : std::vector<uint32_t>{1024, 8192, 32768};
  for (const uint32_t positions : contexts) {
    Layers layers(bench, sizes, positions);
    const double seconds = layers.seconds();
    bench.print(fmt::format("a whole MoE layer, {} experts, {} positions, cache {}", layers.expert_count(), positions,
                            to_string(layers.cache())),
                1, layers.work(), seconds);
  }
}

}  // namespace dspack::bench
