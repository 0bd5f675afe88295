#include "runtime/model/mla_attention.h"

#include <numeric>
#include <vector>

#include "runtime/model/rope.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {
namespace {

constexpr float kKeyEpsilon = 1e-6F;  // k_norm's, independent of rms_norm_eps

// Epsilon of the latents' norms, independent of rms_norm_eps: neither reference passes that to them.
constexpr float kLatentEpsilon = 1e-6F;

uint32_t head_rows(const ModelConfig& config) {
  return config.nope_dim + config.value_dim;
}

bool keeps_choices(const ModelConfig& config) {
  return config.indexer && (!config.indexer->shared.empty() || config.indexer->drafts_share);
}

// Number of rows whose choices of positions are kept.
uint64_t choice_rows(const ModelConfig& config, const AttentionOptions& options) {
  if (!config.indexer) return 0;
  return keeps_choices(config) ? options.max_rows : options.wave_rows;
}

}  // namespace

bool Indexer::needs_choice(const ModelConfig& config, const AttentionBlock::Input& input, const PassPart& part) {
  return input.use != ChoiceUse::as_needed || !part.position.live.empty() ||
         uint64_t{part.position.first} + part.rows > config.indexer->most;
}

Indexer::Indexer(const ModelConfig& config, const AttentionOptions& options, ScratchPlan& plan)
    : config_(config), dtype_(options.index_dtype) {
  const uint64_t rows = options.wave_rows;
  queries_at_ = plan.add(rows * config.indexer->heads * config.indexer->dim);
  weights_at_ = plan.add(rows * config.indexer->heads);
  new_keys_at_ = plan.add(rows * config.indexer->dim);
}

std::vector<CachePlane> Indexer::cache_planes() const {
  const uint32_t dim = config_.indexer->dim;
  std::vector<CachePlane> planes = {
      {.name = kKeys, .width = dim, .dtype = dtype_, .row_bytes = bytes_of(dtype_, dim), .layers = {}}};
  if (dtype_ == Dtype::f8_e4m3) {
    planes.push_back({.name = kScales, .width = 1, .dtype = Dtype::f32, .row_bytes = sizeof(float), .layers = {}});
  }
  return planes;
}

Result<void> Indexer::add_weights(WeightGroup& group, const std::string& prefix) {
  const IndexerConfig& indexer = *config_.indexer;
  const std::string name = prefix + "indexer.";
  TRY(group.add_linear(&q_, name + "wq_b.weight", indexer.heads * indexer.dim, config_.q_rank));
  TRY(group.add_linear(&k_, name + "wk.weight", indexer.dim, config_.hidden));
  TRY(group.add_vector(&gain_, name + "k_norm.weight", indexer.dim));
  TRY(group.add_vector(&bias_, name + "k_norm.bias", indexer.dim));
  return group.add_linear(&weights_, name + "weights_proj.weight", indexer.heads, config_.hidden);
}

// Rotates the first values of each head; attention's queries have their last values rotated.
void Indexer::rotate(kernels::Queue& queue, const AttentionBlock::Input& input, const kernels::Rows& rows,
                     uint32_t heads) const {
  rotate_rows(queue, input, rows,
              {.heads = heads, .first = 0, .dim = config_.rope_dim, .pairs = config_.indexer->pairs});
}

kernels::Product Indexer::key_product(const AttentionBlock::Input& input) const {
  return {.weight = k_.weight(), .y = dense_rows(input.scratch.at(new_keys_at_), input.x.rows, config_.indexer->dim)};
}

void Indexer::store_keys(kernels::Queue& queue, const AttentionBlock::Input& input, const TraceScope& trace) const {
  const kernels::Rows keys = key_product(input).y;
  if (trace.on()) apply(k_, queue, input.x, keys, trace, "wk");
  const TraceScope norm = trace.child("k_norm");
  norm.input(keys);
  queue.layer_norm(keys, gain_, bias_, kKeyEpsilon, keys);
  norm.output(keys);
  rotate(queue, input, keys, 1);
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    const uint32_t first = part.position.first;
    kernels::LivePosition live = part.position.live;  // the destination already includes position.first
    if (!live.empty()) live.limit -= first;
    const kernels::Rows from = rows_of(keys, at, part.rows);
    const kernels::Slice to = part.cache->rows(input.layer, kKeys).at(first);
    if (dtype_ != Dtype::f8_e4m3) return queue.store_rows(to, dtype_, from, live);
    queue.store_fp8_rows(to, part.cache->rows(input.layer, kScales).at(first), from, live);
  });
}

kernels::Weight Indexer::stored_keys(const KvCache& cache, uint32_t layer) const {
  const CacheRows keys = cache.rows(layer, kKeys);
  kernels::Weight weight;
  weight.coding = *kernels::coding_of(dtype_);
  weight.out = keys.rows;
  weight.in = config_.indexer->dim;
  weight.planes[kernels::kCodes] = keys.data;
  if (dtype_ == Dtype::f8_e4m3) {
    weight.block_out = 1;
    weight.block_in = weight.in;
    weight.planes[kernels::kScales] = cache.rows(layer, kScales).data;
  }
  return weight;
}

void Indexer::choose(kernels::Queue& queue, const AttentionBlock::Input& input, const kernels::Rows& q_latent,
                     const kernels::Choice& choice, const TraceScope& trace) const {
  const IndexerConfig& indexer = *config_.indexer;
  const uint32_t width = indexer.heads * indexer.dim;
  const kernels::Rows queries = dense_rows(input.scratch.at(queries_at_), input.x.rows, width);
  apply(q_, queue, q_latent, queries, trace, "wq_b");
  rotate(queue, input, queries, indexer.heads);
  const kernels::Rows weights = dense_rows(input.scratch.at(weights_at_), input.x.rows, indexer.heads);
  apply(weights_, queue, input.x, weights, trace, "weights_proj");
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    if (!needs_choice(config_, input, part)) return;
    queue.choose({.queries = rows_of(queries, at, part.rows).data,
                  .weights = rows_of(weights, at, part.rows).data,
                  .keys = stored_keys(*part.cache, input.layer),
                  .choice = choice_of_rows(choice, at),
                  .rows = part.rows,
                  .heads = indexer.heads,
                  .first_position = part.position.first,
                  .live = part.position.live});
  });
}

MlaAttention::MlaAttention(const ModelConfig& config, const AttentionOptions& options, LayerId layer)
    : config_(config), options_(options), scale_(attention_scale(config.rope, config.query_dim())) {
  ScratchPlan plan;
  const uint64_t rows = options.wave_rows;
  const uint64_t heads = rows * config.heads;
  chosen_at_ = plan.add(choice_rows(config, options) * (config.indexer ? config.indexer->most : 0));
  chosen_counts_at_ = plan.add(choice_rows(config, options));
  q_latent_at_ = plan.add(rows * config.q_rank);
  q_at_ = plan.add(heads * config.query_dim());
  absorbed_at_ = plan.add(heads * config.kv_rank);
  attended_at_ = plan.add(heads * config.kv_rank);
  heads_at_ = plan.add(heads * config.value_dim);
  new_rows_at_ = plan.add(rows * config.cache_dim());
  if (config.has_indexer(layer)) indexer_.emplace(config, options, plan);
  scratch_bytes_ = plan.size_bytes();
}

std::vector<CachePlane> MlaAttention::cache_planes() const {
  std::vector<CachePlane> planes = {
      {.name = kLatents,
       .width = config_.cache_dim(),
       .dtype = options_.cache_dtype,
       .row_bytes = kernels::cache_row_bytes(options_.cache_dtype, config_.cache_shape())}};
  if (!indexer_) return planes;
  const std::vector<CachePlane> more = indexer_->cache_planes();
  planes.insert(planes.end(), more.begin(), more.end());
  return planes;
}

kernels::WorkspaceShape MlaAttention::workspace(uint32_t positions) const {
  kernels::WorkspaceShape shape{.rows = options_.wave_rows,
                                .heads = config_.heads,
                                .latent_dim = config_.kv_rank,
                                .rope_dim = config_.rope_dim,
                                .positions = positions,
                                .nope_dim = config_.nope_dim,
                                .value_dim = config_.value_dim};
  if (config_.indexer) {
    shape.index_heads = config_.indexer->heads;
    shape.index_dim = config_.indexer->dim;
    shape.chosen = config_.indexer->most;
  }
  return shape;
}

Result<void> MlaAttention::add_weights(WeightGroup& group, const std::string& block_name) {
  const std::string prefix = block_name + ".";
  const uint32_t q_out = config_.heads * config_.query_dim();
  if (config_.q_rank == 0) {
    TRY(group.add_linear(&q_b_, prefix + "q_proj.weight", q_out, config_.hidden));
  } else {
    TRY(group.add_linear(&q_a_, prefix + "q_a_proj.weight", config_.q_rank, config_.hidden));
    TRY(group.add_vector(&q_norm_, prefix + "q_a_layernorm.weight", config_.q_rank));
    TRY(group.add_linear(&q_b_, prefix + "q_b_proj.weight", q_out, config_.q_rank));
  }
  if (indexer_) TRY(indexer_->add_weights(group, prefix));
  TRY(group.add_linear(&kv_a_, prefix + "kv_a_proj_with_mqa.weight", config_.cache_dim(), config_.hidden));
  TRY(group.add_vector(&kv_norm_, prefix + "kv_a_layernorm.weight", config_.kv_rank));
  TRY(group.add_linear(&kv_b_, prefix + "kv_b_proj.weight", config_.heads * head_rows(config_), config_.kv_rank));
  return group.add_linear(&o_, prefix + "o_proj.weight", config_.hidden, config_.heads * config_.value_dim);
}

std::vector<std::string> MlaAttention::modules() const {
  std::vector<std::string> names = {"kv_a_proj_with_mqa", "kv_a_layernorm"};
  const std::vector<std::string> queries = config_.q_rank == 0
                                               ? std::vector<std::string>{"q_proj"}
                                               : std::vector<std::string>{"q_a_proj", "q_a_layernorm", "q_b_proj"};
  names.insert(names.end(), queries.begin(), queries.end());
  if (indexer_) {
    for (const char* part : {"wk", "k_norm", "wq_b", "weights_proj"})
      names.push_back(std::string("indexer.") + part);
  }
  names.emplace_back("o_proj");
  return names;
}

std::vector<kernels::Weight> MlaAttention::readers() const {
  std::vector<kernels::Weight> readers = {kv_a_.weight(), config_.q_rank == 0 ? q_b_.weight() : q_a_.weight()};
  return readers;
}

MlaAttention::NewRows MlaAttention::new_rows(const Input& input) const {
  NewRows made{.rows = dense_rows(input.scratch.at(new_rows_at_), input.x.rows, config_.cache_dim())};
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t) {
    const CacheRows cache = part.cache->rows(input.layer, kLatents);
    DSPACK_CHECK(cache.dtype == options_.cache_dtype, "a cache of another type");
    DSPACK_CHECK(part.position.live.empty() || part.rows <= kMaxRecordedRows, "too many rows at a live position");
    if (cache.dtype != Dtype::f32 || part.rows != input.x.rows || !part.position.live.empty()) return;
    made.is_in_cache = true;
    made.rows.data = cache.at(part.position.first);
  });
  return made;
}

void MlaAttention::store(kernels::Queue& queue, const Input& input, const NewRows& made) const {
  if (made.is_in_cache) return;
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    const kernels::Slice stored = part.cache->rows(input.layer, kLatents).at(part.position.first);
    kernels::LivePosition live = part.position.live;  // `stored` already includes position.first
    if (!live.empty()) live.limit -= part.position.first;
    const kernels::Rows from = rows_of(made.rows, at, part.rows);
    if (options_.cache_dtype == Dtype::f8_e4m3) return queue.store_latents(stored, config_.cache_shape(), from, live);
    queue.store_rows(stored, options_.cache_dtype, from, live);
  });
}

kernels::Rows MlaAttention::query_rows(const Input& input) const {
  return dense_rows(input.scratch.at(q_at_), input.x.rows, config_.heads * config_.query_dim());
}

kernels::Rows MlaAttention::query_latents(const Input& input) const {
  return dense_rows(input.scratch.at(q_latent_at_), input.x.rows, config_.q_rank);
}

void MlaAttention::project_traced(kernels::Queue& queue, const Input& input, const TraceScope& trace) const {
  const NewRows made = new_rows(input);
  apply(kv_a_, queue, input.x, made.rows, trace, "kv_a_proj_with_mqa");
  kernels::Rows latent = made.rows;
  latent.cols = config_.kv_rank;
  normalise(queue, latent, kv_norm_, kLatentEpsilon, latent, trace, "kv_a_layernorm");
  rotate_rows(queue, input, made.rows, {.heads = 1, .first = config_.kv_rank, .dim = config_.rope_dim});
  store(queue, input, made);
  if (config_.q_rank == 0) return apply(q_b_, queue, input.x, query_rows(input), trace, "q_proj");
  const kernels::Rows query = query_latents(input);
  apply(q_a_, queue, input.x, query, trace, "q_a_proj");
  normalise(queue, query, q_norm_, kLatentEpsilon, query, trace, "q_a_layernorm");
  apply(q_b_, queue, query, query_rows(input), trace, "q_b_proj");
}

void MlaAttention::project(kernels::Queue& queue, const Input& input) const {
  const bool has_latents = config_.q_rank != 0;
  const NewRows made = new_rows(input);
  const kernels::Rows query = has_latents ? query_latents(input) : query_rows(input);
  std::vector<kernels::Product> products = {{.weight = kv_a_.weight(), .y = made.rows},
                                            {.weight = (has_latents ? q_a_ : q_b_).weight(), .y = query}};
  if (indexer_) products.push_back(indexer_->key_product(input));
  queue.linear_each(products, input.x);
  const RotatedValues key{.heads = 1, .first = config_.kv_rank, .dim = config_.rope_dim};
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    const kernels::Rows rows = rows_of(made.rows, at, part.rows);
    kernels::LatentsArgs latents{.rows = rows,
                                 .shape = config_.cache_shape(),
                                 .gain = kv_norm_,
                                 .query = {},
                                 .query_gain = {},
                                 .epsilon = kLatentEpsilon,
                                 .rope = rope_args(input, part, rows, key),
                                 .cache = {},
                                 .cache_dtype = options_.cache_dtype};
    if (has_latents) {
      latents.query = rows_of(query, at, part.rows);
      latents.query_gain = q_norm_;
    }
    if (!made.is_in_cache) latents.cache = part.cache->rows(input.layer, kLatents).at(part.position.first);
    queue.finish_latents(latents, has_latents ? &q_b_.weight() : nullptr);
  });
  if (has_latents) queue.linear(q_b_.weight(), query, query_rows(input));
}

// Rotating a pair of values by (factor, 0) multiplies it. Within the original context the factor is 1.
void MlaAttention::scale_queries(kernels::Queue& queue, const Input& input) const {
  if (input.tables.query_scale.empty()) return;
  const kernels::Rows queries = query_rows(input);
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    const bool is_within =
        part.position.live.empty() && part.position.first + part.rows <= config_.rope.yarn->original_positions;
    if (is_within) return;
    const kernels::Rows rows = rows_of(queries, at, part.rows);
    queue.rope({.data = rows.data,
                .rows = rows.rows,
                .heads = rows.cols / 2,
                .dim = 2,
                .head_stride = 2,
                .row_stride = rows.stride,
                .first_position = part.position.first,
                .cos_sin = input.tables.query_scale,
                .live = part.position.live});
  });
}

kernels::HeadLinearArgs MlaAttention::heads_of_kv_b(uint32_t rows) const {
  kernels::HeadLinearArgs args;
  args.weight = kv_b_.weight();
  args.heads = config_.heads;
  args.head_rows = head_rows(config_);
  args.rows = rows;
  return args;
}

// Each head's query is [nope | rope]: the first part is absorbed, the second rotated in place, by the positions of its
// sequence.
void MlaAttention::absorb(kernels::Queue& queue, const Input& input) const {
  const uint32_t q_width = config_.heads * config_.query_dim();
  const uint32_t latent_width = config_.heads * config_.kv_rank;
  const RotatedValues keys{.heads = config_.heads, .first = config_.nope_dim, .dim = config_.rope_dim};
  kernels::HeadLinearArgs absorb = heads_of_kv_b(input.x.rows);
  absorb.rows_used = config_.nope_dim;
  absorb.x = input.scratch.at(q_at_);
  absorb.x_row_stride = q_width;
  absorb.x_head_stride = config_.query_dim();
  absorb.y = input.scratch.at(absorbed_at_);
  absorb.y_row_stride = latent_width;
  absorb.y_head_stride = config_.kv_rank;
  std::vector<kernels::RopeArgs> rotations;
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    rotations.push_back(rope_args(input, part, rows_of(query_rows(input), at, part.rows), keys));
  });
  for (size_t i = 1; i < rotations.size(); ++i)
    queue.rope(rotations[i]);
  queue.absorb(rotations.front(), absorb);
}

void MlaAttention::attend(kernels::Queue& queue, const Input& input) const {
  const uint32_t q_width = config_.heads * config_.query_dim();
  const uint32_t latent_width = config_.heads * config_.kv_rank;
  const uint32_t value_width = config_.heads * config_.value_dim;
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    const auto row = [&](uint64_t place, uint32_t width) {
      return input.scratch.at(place + uint64_t{at} * width * sizeof(float));
    };
    queue.mla_attend({.query_latent = row(absorbed_at_, latent_width),
                      .query_rope = row(q_at_, q_width).at(uint64_t{config_.nope_dim} * sizeof(float)),
                      .cache = part.cache->rows(input.layer, kLatents).data,
                      .out = row(attended_at_, latent_width),
                      .rows = part.rows,
                      .heads = config_.heads,
                      .latent_dim = config_.kv_rank,
                      .rope_dim = config_.rope_dim,
                      .rope_row_stride = q_width,
                      .rope_head_stride = config_.query_dim(),
                      .first_position = part.position.first,
                      .scale = scale_,
                      .cache_dtype = options_.cache_dtype,
                      .live = part.position.live,
                      .choice = config_.indexer && Indexer::needs_choice(config_, input, part)
                                    ? choice_in(input.scratch, input.first_row + at)
                                    : kernels::Choice()});
  });

  kernels::HeadLinearArgs values = heads_of_kv_b(input.x.rows);
  values.first_row = config_.nope_dim;
  values.rows_used = config_.value_dim;
  values.x = input.scratch.at(attended_at_);
  values.x_row_stride = latent_width;
  values.x_head_stride = config_.kv_rank;
  values.y = input.scratch.at(heads_at_);
  values.y_row_stride = value_width;
  values.y_head_stride = config_.value_dim;
  queue.head_linear(values);
}

// Only for rows of one sequence, as a prompt's.
bool MlaAttention::attend_expanded(kernels::Queue& queue, const Input& input) const {
  bool is_done = false;
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t) {
    if (part.rows != input.x.rows || !part.position.live.empty()) return;
    if (config_.indexer && Indexer::needs_choice(config_, input, part)) return;
    const kernels::Rows queries = query_rows(input);
    is_done = queue.attend_expanded(
        rope_args(input, part, queries, {.heads = config_.heads, .first = config_.nope_dim, .dim = config_.rope_dim}),
        {.kv_b = kv_b_.weight(),
         .queries = queries,
         .cache = part.cache->rows(input.layer, kLatents).data,
         .out = input.scratch.at(heads_at_),
         .heads = config_.heads,
         .latent_dim = config_.kv_rank,
         .rope_dim = config_.rope_dim,
         .nope_dim = config_.nope_dim,
         .value_dim = config_.value_dim,
         .first_position = part.position.first,
         .scale = scale_,
         .cache_dtype = options_.cache_dtype});
  });
  return is_done;
}

// Stores keys even if these rows choose nothing: later rows may choose among them.
void MlaAttention::index(kernels::Queue& queue, const Input& input, const TraceScope& trace) const {
  indexer_->store_keys(queue, input, trace);
  if (input.use == ChoiceUse::taken) return;
  bool is_needed = false;
  for_each_part(input.parts, input.first_row, input.x.rows,
                [&](const PassPart& part, uint32_t) { is_needed |= Indexer::needs_choice(config_, input, part); });
  if (!is_needed) return;
  indexer_->choose(queue, input, query_latents(input), choice_in(input.scratch, input.first_row), trace);
}

void MlaAttention::run(kernels::Queue& queue, const Input& input, const kernels::Rows& y, const kernels::Rows& residual,
                       const TraceScope& trace) const {
  if (trace.on()) {
    project_traced(queue, input, trace);
  } else {
    project(queue, input);
  }
  scale_queries(queue, input);
  if (indexer_) index(queue, input, trace.child("indexer"));
  if (!attend_expanded(queue, input)) {
    absorb(queue, input);
    attend(queue, input);
  }
  const kernels::Rows heads = dense_rows(input.scratch.at(heads_at_), input.x.rows, config_.heads * config_.value_dim);
  if (!trace.on() && residual.rows > 0) return queue.add_linear(o_.weight(), heads, residual, y);
  apply(o_, queue, heads, y, trace, "o_proj");
  trace.output(y);
  if (residual.rows > 0) queue.add(residual, y);
}

kernels::Choice MlaAttention::choice_in(kernels::Slice scratch, uint32_t first) const {
  DSPACK_CHECK(config_.indexer.has_value(), "attention to all positions");
  const kernels::Choice all{
      .ids = scratch.at(chosen_at_), .counts = scratch.at(chosen_counts_at_), .most = config_.indexer->most};
  return choice_of_rows(all, keeps_choices(config_) ? first : first % options_.wave_rows);
}

void MlaAttention::choose_first(kernels::Queue& queue, kernels::Slice scratch, uint32_t rows,
                                uint32_t positions) const {
  if (!config_.indexer) return;
  std::vector<uint32_t> ids(config_.indexer->most);
  std::iota(ids.begin(), ids.end(), 0U);
  const uint32_t count = std::min(positions, config_.indexer->most);
  for (uint32_t row = 0; row < rows; ++row) {
    const kernels::Choice one = choice_in(scratch, row);
    queue.upload(one.ids, std::as_bytes(std::span(ids)));
    queue.upload(one.counts, std::as_bytes(std::span(&count, 1)));
  }
  queue.synchronize();
}

void MlaAttention::pass_on(kernels::Queue& queue, kernels::Slice scratch, uint32_t row) const {
  DSPACK_CHECK(keeps_choices(config_), "this model's choices are not kept");
  const kernels::Choice to = choice_in(scratch, 0);
  const kernels::Choice from = choice_in(scratch, row);
  queue.copy(to.ids, from.ids, uint64_t{to.most} * sizeof(uint32_t));
  queue.copy(to.counts, from.counts, sizeof(uint32_t));
}

}  // namespace dspack::runtime
