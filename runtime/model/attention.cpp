#include "runtime/model/attention.h"

#include <algorithm>
#include <vector>

#include "runtime/model/expanded_attention.h"
#include "runtime/model/rope.h"

namespace dspack::runtime {

namespace {

// The norms of the latents use this epsilon whatever rms_norm_eps says: neither reference passes it on to them.
constexpr float kLatentEpsilon = 1e-6F;

uint32_t head_rows(const ModelConfig& config) {
  return config.nope_dim + config.value_dim;
}

}  // namespace

Result<void> add_attention(WeightGroup& group, AttentionWeights& weights, const ModelConfig& config,
                           const std::string& layer_name) {
  const std::string prefix = layer_name + ".self_attn.";
  const uint32_t q_out = config.heads * config.query_dim();
  if (config.q_rank == 0) {
    TRY(group.add_linear(&weights.q_b, prefix + "q_proj.weight", q_out, config.hidden));
  } else {
    TRY(group.add_linear(&weights.q_a, prefix + "q_a_proj.weight", config.q_rank, config.hidden));
    TRY(group.add_vector(&weights.q_norm, prefix + "q_a_layernorm.weight", config.q_rank));
    TRY(group.add_linear(&weights.q_b, prefix + "q_b_proj.weight", q_out, config.q_rank));
  }
  TRY(group.add_linear(&weights.kv_a, prefix + "kv_a_proj_with_mqa.weight", config.cache_dim(), config.hidden));
  TRY(group.add_vector(&weights.kv_norm, prefix + "kv_a_layernorm.weight", config.kv_rank));
  TRY(group.add_linear(&weights.kv_b, prefix + "kv_b_proj.weight", config.heads * head_rows(config), config.kv_rank));
  return group.add_linear(&weights.o, prefix + "o_proj.weight", config.hidden, config.heads * config.value_dim);
}

Attention::Attention(const ModelConfig& config, const AttentionOptions& options, uint32_t wave_rows, ScratchPlan& plan)
    : config_(config),
      form_(options.form),
      cache_dtype_(options.cache_dtype),
      scale_(attention_scale(config.rope, config.query_dim())) {
  const uint64_t rows = wave_rows;
  const uint64_t heads = rows * config.heads;
  q_latent_at_ = plan.add(rows * config.q_rank);
  q_at_ = plan.add(heads * config.query_dim());
  absorbed_at_ = plan.add(heads * config.kv_rank);
  attended_at_ = plan.add(heads * config.kv_rank);
  heads_at_ = plan.add(heads * config.value_dim);
  const uint64_t expanded_positions = form_ == AttentionForm::expanded ? options.context : 0;
  expanded_at_ = plan.add(expanded_positions * config.heads * head_rows(config));
  const bool in_place = cache_dtype_ == Dtype::f32;
  const uint64_t live_rows = std::min(rows, uint64_t{kMostRecordedRows});
  new_rows_at_ = plan.add((in_place ? live_rows : rows) * config.cache_dim());
  cache_values_at_ = plan.add(in_place ? 0 : expanded_positions * config.cache_dim());
}

// kv_a's output is the cache's row as it is: latent, then rotary key. The latent is normalised and the key rotated
// there: in the cache itself if that is FP32 and the row's place is known, else before they are stored in it.
void Attention::fill_cache(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                           const Input& input, const TraceScope& trace) const {
  DSPACK_CHECK(input.cache.dtype == cache_dtype_, "a cache of another type");
  const PassPosition& position = input.position;
  const bool in_place = cache_dtype_ == Dtype::f32 && position.live.empty();
  DSPACK_CHECK(position.live.empty() || input.x.rows <= kMostRecordedRows, "too many rows at a live position");
  const kernels::Slice stored = input.cache.at(position.first);
  const kernels::Rows rows{.data = in_place ? stored : kernels::Slice{.buffer = &scratch, .offset_bytes = new_rows_at_},
                           .rows = input.x.rows,
                           .cols = config_.cache_dim(),
                           .stride = config_.cache_dim()};
  apply(weights.kv_a, queue, input.x, rows, trace, "kv_a_proj_with_mqa");
  kernels::Rows latent = rows;
  latent.cols = config_.kv_rank;
  normalise(queue, latent, weights.kv_norm, kLatentEpsilon, latent, trace, "kv_a_layernorm");
  queue.rope({.data = rows.data.at(uint64_t{config_.kv_rank} * sizeof(float)),
              .rows = rows.rows,
              .heads = 1,
              .dim = config_.rope_dim,
              .head_stride = config_.rope_dim,
              .row_stride = rows.stride,
              .first_position = position.first,
              .cos_sin = input.cos_sin,
              .live = position.live});
  if (in_place) return;
  kernels::LivePosition behind = position.live;  // `stored` stands at position.first already
  if (!behind.empty()) behind.limit -= position.first;
  if (cache_dtype_ == Dtype::f8_e4m3) return queue.store_latents(stored, config_.cache_shape(), rows, behind);
  queue.store_rows(stored, cache_dtype_, rows, behind);
}

// Each head's query is [nope | rope]; the second part is rotated in place.
void Attention::make_queries(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                             const Input& input, const TraceScope& trace) const {
  const uint32_t width = config_.heads * config_.query_dim();
  const kernels::Rows q{
      .data = {.buffer = &scratch, .offset_bytes = q_at_}, .rows = input.x.rows, .cols = width, .stride = width};
  if (config_.q_rank == 0) {
    apply(weights.q_b, queue, input.x, q, trace, "q_proj");
  } else {
    const kernels::Rows latent{.data = {.buffer = &scratch, .offset_bytes = q_latent_at_},
                               .rows = input.x.rows,
                               .cols = config_.q_rank,
                               .stride = config_.q_rank};
    apply(weights.q_a, queue, input.x, latent, trace, "q_a_proj");
    normalise(queue, latent, weights.q_norm, kLatentEpsilon, latent, trace, "q_a_layernorm");
    apply(weights.q_b, queue, latent, q, trace, "q_b_proj");
  }
  queue.rope({.data = q.data.at(uint64_t{config_.nope_dim} * sizeof(float)),
              .rows = q.rows,
              .heads = config_.heads,
              .dim = config_.rope_dim,
              .head_stride = config_.query_dim(),
              .row_stride = width,
              .first_position = input.position.first,
              .cos_sin = input.cos_sin,
              .live = input.position.live});
}

kernels::HeadLinearArgs Attention::heads_of_kv_b(const AttentionWeights& weights, uint32_t rows) const {
  kernels::HeadLinearArgs args;
  args.weight = weights.kv_b.weight();
  args.heads = config_.heads;
  args.head_rows = head_rows(config_);
  args.rows = rows;
  return args;
}

void Attention::run(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                    const Input& input, const kernels::Rows& y, const TraceScope& trace) const {
  fill_cache(queue, scratch, weights, input, trace);
  make_queries(queue, scratch, weights, input, trace);
  if (form_ == AttentionForm::absorbed) {
    attend_absorbed(queue, scratch, weights, input);
  } else {
    attend_expanded(queue, scratch, weights, input, trace);
  }
  const uint32_t value_width = config_.heads * config_.value_dim;
  apply(weights.o, queue,
        {.data = {.buffer = &scratch, .offset_bytes = heads_at_},
         .rows = input.x.rows,
         .cols = value_width,
         .stride = value_width},
        y, trace, "o_proj");
}

void Attention::attend_absorbed(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                                const Input& input) const {
  const auto place = [&](uint64_t offset) { return kernels::Slice{.buffer = &scratch, .offset_bytes = offset}; };
  const uint32_t rows = input.x.rows;
  const uint32_t q_width = config_.heads * config_.query_dim();
  const uint32_t latent_width = config_.heads * config_.kv_rank;
  const uint32_t value_width = config_.heads * config_.value_dim;

  kernels::HeadLinearArgs absorb = heads_of_kv_b(weights, rows);
  absorb.rows_used = config_.nope_dim;
  absorb.x = place(q_at_);
  absorb.x_row_stride = q_width;
  absorb.x_head_stride = config_.query_dim();
  absorb.y = place(absorbed_at_);
  absorb.y_row_stride = latent_width;
  absorb.y_head_stride = config_.kv_rank;
  queue.head_linear_transposed(absorb);

  queue.mla_attend({.query_latent = place(absorbed_at_),
                    .query_rope = place(q_at_).at(uint64_t{config_.nope_dim} * sizeof(float)),
                    .cache = input.cache.data,
                    .out = place(attended_at_),
                    .rows = rows,
                    .heads = config_.heads,
                    .latent_dim = config_.kv_rank,
                    .rope_dim = config_.rope_dim,
                    .rope_row_stride = q_width,
                    .rope_head_stride = config_.query_dim(),
                    .first_position = input.position.first,
                    .scale = scale_,
                    .cache_dtype = cache_dtype_,
                    .live = input.position.live});

  kernels::HeadLinearArgs values = heads_of_kv_b(weights, rows);
  values.first_row = config_.nope_dim;
  values.rows_used = config_.value_dim;
  values.x = place(attended_at_);
  values.x_row_stride = latent_width;
  values.x_head_stride = config_.kv_rank;
  values.y = place(heads_at_);
  values.y_row_stride = value_width;
  values.y_head_stride = config_.value_dim;
  queue.head_linear(values);
}

// The keys and values of all positions are expanded again for every wave; only the wave's own are the module's output.
void Attention::attend_expanded(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                                const Input& input, const TraceScope& trace) const {
  const auto place = [&](uint64_t offset) { return kernels::Slice{.buffer = &scratch, .offset_bytes = offset}; };
  DSPACK_CHECK(input.position.live.empty(), "the expanded form needs to know where it stands");
  const uint32_t first_position = input.position.first;
  const uint32_t positions = first_position + input.x.rows;
  const uint32_t width = config_.heads * head_rows(config_);
  const kernels::Rows expanded{.data = place(expanded_at_), .rows = positions, .cols = width, .stride = width};
  const bool in_place = cache_dtype_ == Dtype::f32;
  const kernels::Rows cached{.data = in_place ? input.cache.data : place(cache_values_at_),
                             .rows = positions,
                             .cols = config_.cache_dim(),
                             .stride = config_.cache_dim()};
  if (cache_dtype_ == Dtype::f8_e4m3) {
    queue.load_latents(cached, input.cache.data, config_.cache_shape());
  } else if (!in_place) {
    queue.load_rows(cached, input.cache.data, cache_dtype_);
  }
  kernels::Rows latents = cached;
  latents.cols = config_.kv_rank;
  const TraceScope module = trace.child("kv_b_proj");
  module.input(rows_of(latents, first_position, input.x.rows));
  weights.kv_b.apply(queue, latents, expanded);
  module.output(rows_of(expanded, first_position, input.x.rows));

  const auto values = [&](kernels::Slice from, size_t count) {
    std::vector<float> host(count);
    queue.download(std::as_writable_bytes(std::span(host)), from);
    return host;
  };
  const size_t heads = size_t{input.x.rows} * config_.heads;
  const std::vector<float> queries = values(place(q_at_), heads * config_.query_dim());
  const std::vector<float> keys_and_values = values(expanded.data, size_t{positions} * width);
  const std::vector<float> cache = values(cached.data, size_t{positions} * config_.cache_dim());
  queue.synchronize();
  std::vector<float> out(heads * config_.value_dim);
  expanded_attention({.queries = queries,
                      .expanded = keys_and_values,
                      .cache = cache,
                      .out = out,
                      .rows = input.x.rows,
                      .heads = config_.heads,
                      .nope_dim = config_.nope_dim,
                      .rope_dim = config_.rope_dim,
                      .value_dim = config_.value_dim,
                      .cache_dim = config_.cache_dim(),
                      .first_position = first_position,
                      .scale = scale_});
  queue.upload(place(heads_at_), std::as_bytes(std::span(out)));
  queue.synchronize();
}

}  // namespace dspack::runtime
