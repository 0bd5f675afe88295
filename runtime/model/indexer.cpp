#include "runtime/model/indexer.h"

namespace dspack::runtime {

namespace {

constexpr float kKeyEpsilon = 1e-6F;  // k_norm's, independent of rms_norm_eps

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

}  // namespace dspack::runtime
