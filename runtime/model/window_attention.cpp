#include "runtime/model/window_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dspack::runtime {
namespace {

// Names of planes.
constexpr std::string_view kWindow = "window";
constexpr std::string_view kChosenEntries = "chosen entries";
constexpr std::string_view kChosenState = "rows to chosen entries";
constexpr std::string_view kAllEntries = "entries";
constexpr std::string_view kAllState = "rows to entries";
constexpr std::string_view kIndexEntries = "index entries";
constexpr std::string_view kIndexState = "rows to index entries";

/// The position of row `rows`.
PassPosition after(PassPosition position, uint32_t rows) {
  position.first += rows;
  return position;
}

}  // namespace

Compressor::Compressor(const ModelConfig& config, const Shape& shape, uint32_t wave_rows, ScratchPlan& plan)
    : config_(config),
      shape_(shape),
      values_at_(plan.add(uint64_t{wave_rows} * width())),
      gates_at_(plan.add(uint64_t{wave_rows} * width())) {}

// An entry is computed from the rows of its block and, if entries overlap, of the block before. Continuing after a
// position therefore needs the rows of its unfinished block, and of the block before that.
std::vector<CachePlane> Compressor::cache_planes() const {
  const uint32_t back = shape_.overlaps ? shape_.every : 0;
  const uint32_t values = 2 * width();
  return {{.name = shape_.entries,
           .width = shape_.dim,
           .dtype = shape_.dtype,
           .row_bytes = bytes_of(shape_.dtype, shape_.dim),
           .every = shape_.every},
          {.name = shape_.state,
           .width = values,
           .dtype = Dtype::f32,
           .row_bytes = values * sizeof(float),
           .ring = back + shape_.every - 1 + CachePlane::kRewind,
           .block = shape_.every,
           .back = back}};
}

Result<void> Compressor::add_weights(WeightGroup& group, const std::string& name) {
  TRY(group.add_linear(&values_, name + ".wkv.weight", width(), config_.hidden));
  TRY(group.add_linear(&gates_, name + ".wgate.weight", width(), config_.hidden));
  TRY(group.add_table(&ape_, name + ".ape", shape_.every, width()));
  return group.add_vector(&norm_, name + ".norm.weight", shape_.dim);
}

void Compressor::add_products(const AttentionBlock::Input& input, std::vector<kernels::Product>& products) const {
  products.push_back(
      {.weight = values_.weight(), .y = dense_rows(input.scratch.at(values_at_), input.x.rows, width())});
  products.push_back({.weight = gates_.weight(), .y = dense_rows(input.scratch.at(gates_at_), input.x.rows, width())});
}

void Compressor::run(kernels::Queue& queue, const AttentionBlock::Input& input) const {
  const kernels::Rows values = dense_rows(input.scratch.at(values_at_), input.x.rows, width());
  const kernels::Rows gates = dense_rows(input.scratch.at(gates_at_), input.x.rows, width());
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    const CacheRows state = part.cache->rows(input.layer, shape_.state);
    queue.compress({.values = rows_of(values, at, part.rows),
                    .gates = rows_of(gates, at, part.rows),
                    .ape = ape_,
                    .state = state.data,
                    .state_rows = state.rows,
                    .entries = entries(*part.cache, input.layer).data,
                    .dtype = shape_.dtype,
                    .gain = norm_,
                    .epsilon = config_.norm_epsilon,
                    .cos_sin = input.tables.entry_cos_sin,
                    .rope_dim = config_.rope_dim,
                    .dim = shape_.dim,
                    .every = shape_.every,
                    .overlaps = shape_.overlaps,
                    .first_position = part.position.first,
                    .live = part.position.live});
  });
}

WindowAttention::WindowAttention(const ModelConfig& config, const AttentionOptions& options, LayerId layer)
    : config_(config), options_(options), every_(config.entry_positions(layer)) {
  ScratchPlan plan;
  const uint64_t rows = options.wave_rows;
  const WindowConfig& window = *config.window;
  q_latent_at_ = plan.add(rows * config.q_rank);
  q_at_ = plan.add(rows * config.heads * head_dim());
  keys_at_ = plan.add(rows * head_dim());
  heads_at_ = plan.add(rows * config.heads * head_dim());
  groups_at_ = plan.add(rows * window.out_groups * window.out_rank);
  const bool is_chosen = config.has_indexer(layer);
  if (every_ > 0) {
    compressor_.emplace(config,
                        Compressor::Shape{.entries = is_chosen ? kChosenEntries : kAllEntries,
                                          .state = is_chosen ? kChosenState : kAllState,
                                          .dim = head_dim(),
                                          .every = every_,
                                          .overlaps = is_chosen,
                                          .dtype = options.cache_dtype},
                        options.wave_rows, plan);
  }
  if (is_chosen) {
    const IndexerConfig& index = *config.indexer;
    const Compressor::Shape shape{.entries = kIndexEntries,
                                  .state = kIndexState,
                                  .dim = index.dim,
                                  .every = every_,
                                  .overlaps = true,
                                  .dtype = options.index_dtype};
    indexer_.emplace(Indexer{.keys = Compressor(config, shape, options.wave_rows, plan),
                             .queries_at = plan.add(rows * index.heads * index.dim),
                             .weights_at = plan.add(rows * index.heads),
                             .chosen_at = plan.add(rows * index.most),
                             .counts_at = plan.add(rows),
                             .queries = {},
                             .weights = {}});
  }
  scratch_bytes_ = plan.size_bytes();
}

std::vector<CachePlane> WindowAttention::cache_planes() const {
  std::vector<CachePlane> planes = {{.name = kWindow,
                                     .width = head_dim(),
                                     .dtype = options_.cache_dtype,
                                     .row_bytes = bytes_of(options_.cache_dtype, head_dim()),
                                     .ring = config_.window->positions + CachePlane::kRewind,
                                     .back = config_.window->positions - 1}};
  const auto add = [&](const std::vector<CachePlane>& more) { planes.insert(planes.end(), more.begin(), more.end()); };
  if (compressor_) add(compressor_->cache_planes());
  if (indexer_) add(indexer_->keys.cache_planes());
  return planes;
}

kernels::WorkspaceShape WindowAttention::workspace(uint32_t positions) const {
  kernels::WorkspaceShape shape{.rows = options_.wave_rows,
                                .heads = config_.heads,
                                .positions = positions / ModelConfig::kChosenEntryPositions,
                                .window_dim = head_dim()};
  if (config_.indexer) {
    shape.index_heads = config_.indexer->heads;
    shape.index_dim = config_.indexer->dim;
    shape.chosen = config_.indexer->most;
  }
  return shape;
}

Result<void> WindowAttention::add_weights(WeightGroup& group, const std::string& block_name) {
  const std::string prefix = block_name + ".";
  const WindowConfig& window = *config_.window;
  const uint32_t projected = window.out_groups * window.out_rank;
  TRY(group.add_linear(&q_a_, prefix + "wq_a.weight", config_.q_rank, config_.hidden));
  TRY(group.add_vector(&q_norm_, prefix + "q_norm.weight", config_.q_rank));
  TRY(group.add_linear(&q_b_, prefix + "wq_b.weight", config_.heads * head_dim(), config_.q_rank));
  TRY(group.add_linear(&kv_, prefix + "wkv.weight", head_dim(), config_.hidden));
  TRY(group.add_vector(&kv_norm_, prefix + "kv_norm.weight", head_dim()));
  TRY(group.add_vector(&sinks_, prefix + "attn_sink", config_.heads));
  if (compressor_) TRY(compressor_->add_weights(group, prefix + "compressor"));
  if (indexer_) {
    const IndexerConfig& index = *config_.indexer;
    TRY(indexer_->keys.add_weights(group, prefix + "indexer.compressor"));
    TRY(group.add_linear(&indexer_->queries, prefix + "indexer.wq_b.weight", index.heads * index.dim, config_.q_rank));
    TRY(group.add_linear(&indexer_->weights, prefix + "indexer.weights_proj.weight", index.heads, config_.hidden));
  }
  TRY(group.add_linear(&o_a_, prefix + "wo_a.weight", projected, config_.heads / window.out_groups * head_dim()));
  return group.add_linear(&o_b_, prefix + "wo_b.weight", config_.hidden, projected);
}

std::vector<std::string> WindowAttention::modules() const {
  return {"q_a_proj", "kv_proj", "q_a_norm", "kv_norm", "q_b_proj", "o_b_proj"};
}

std::vector<kernels::Weight> WindowAttention::readers() const {
  return {q_a_.weight(), kv_.weight()};
}

kernels::Rows WindowAttention::query_rows(const Input& input) const {
  return dense_rows(input.scratch.at(q_at_), input.x.rows, config_.heads * head_dim());
}

kernels::Rows WindowAttention::key_rows(const Input& input) const {
  return dense_rows(input.scratch.at(keys_at_), input.x.rows, head_dim());
}

// Rotates the last values of each head. Layers with entries use their own angles.
void WindowAttention::rotate(kernels::Queue& queue, const Input& input, const kernels::Rows& rows, uint32_t heads,
                             kernels::RopePairs pairs, bool inverse) const {
  const uint32_t dim = rows.cols / heads;
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    kernels::RopeArgs args =
        rope_args(input, part, rows_of(rows, at, part.rows),
                  {.heads = heads, .first = dim - config_.rope_dim, .dim = config_.rope_dim, .pairs = pairs});
    if (every_ > 0) args.cos_sin = input.tables.entry_cos_sin;
    args.inverse = inverse;
    queue.rope(args);
  });
}

void WindowAttention::project(kernels::Queue& queue, const Input& input, const TraceScope& trace) const {
  const kernels::Rows latent = dense_rows(input.scratch.at(q_latent_at_), input.x.rows, config_.q_rank);
  std::vector<kernels::Product> products;
  if (trace.on()) {
    apply(q_a_, queue, input.x, latent, trace, "q_a_proj");
    apply(kv_, queue, input.x, key_rows(input), trace, "kv_proj");
  } else {
    products = {{.weight = q_a_.weight(), .y = latent}, {.weight = kv_.weight(), .y = key_rows(input)}};
  }
  if (compressor_) compressor_->add_products(input, products);
  if (indexer_) {
    indexer_->keys.add_products(input, products);
    products.push_back({.weight = indexer_->weights.weight(),
                        .y = dense_rows(input.scratch.at(indexer_->weights_at), input.x.rows, config_.indexer->heads)});
  }
  if (!products.empty()) queue.linear_each(products, input.x);
  normalise(queue, latent, q_norm_, config_.norm_epsilon, latent, trace, "q_a_norm");
  normalise(queue, key_rows(input), kv_norm_, config_.norm_epsilon, key_rows(input), trace, "kv_norm");
  apply(q_b_, queue, latent, query_rows(input), trace, "q_b_proj");
  // Normalises each head by itself, without a gain.
  const kernels::Rows heads = dense_rows(query_rows(input).data, input.x.rows * config_.heads, head_dim());
  queue.rms_norm(heads, {}, config_.norm_epsilon, heads);
  rotate(queue, input, query_rows(input), config_.heads, kernels::RopePairs::neighbours, false);
  rotate(queue, input, key_rows(input), 1, kernels::RopePairs::neighbours, false);
  if (!indexer_) return;
  const kernels::Rows queries =
      dense_rows(input.scratch.at(indexer_->queries_at), input.x.rows, config_.indexer->heads * config_.indexer->dim);
  apply(indexer_->queries, queue, latent, queries, {}, "");
  rotate(queue, input, queries, config_.indexer->heads, config_.indexer->pairs, false);
}

// False: the rows have no more entries than they may choose, and attend to all of them. A recorded pass has no position
// by which to tell, and a choice of all gives the same bits.
bool WindowAttention::needs_choice(const PassPart& part) const {
  return indexer_ &&
         (!part.position.live.empty() || (uint64_t{part.position.first} + part.rows) / every_ > config_.indexer->most);
}

kernels::Choice WindowAttention::choice(const Input& input, uint32_t first) const {
  return choice_of_rows({.ids = input.scratch.at(indexer_->chosen_at),
                         .counts = input.scratch.at(indexer_->counts_at),
                         .most = config_.indexer->most},
                        first);
}

void WindowAttention::choose(kernels::Queue& queue, const Input& input, const PassPart& part, uint32_t at) const {
  const IndexerConfig& index = *config_.indexer;
  const CacheRows stored = indexer_->keys.entries(*part.cache, input.layer);
  kernels::Weight keys;
  keys.coding = *kernels::coding_of(stored.dtype);
  keys.out = stored.rows;
  keys.in = index.dim;
  keys.planes[kernels::kCodes] = stored.data;
  const kernels::Rows queries =
      dense_rows(input.scratch.at(indexer_->queries_at), input.x.rows, index.heads * index.dim);
  const kernels::Rows weights = dense_rows(input.scratch.at(indexer_->weights_at), input.x.rows, index.heads);
  queue.choose({.queries = rows_of(queries, at, part.rows).data,
                .weights = rows_of(weights, at, part.rows).data,
                .keys = keys,
                .choice = choice(input, at),
                .rows = part.rows,
                .heads = index.heads,
                .first_position = part.position.first,
                .live = part.position.live,
                .every = every_});
}

void WindowAttention::store(kernels::Queue& queue, const kernels::Rows& keys, const CacheRows& ring,
                            const PassPosition& position) const {
  queue.store_in_ring({.rows = keys,
                       .ring = ring.data,
                       .ring_rows = ring.rows,
                       .dtype = options_.cache_dtype,
                       .first_position = position.first,
                       .live = position.live});
}

void WindowAttention::attend(kernels::Queue& queue, const Input& input, const PassPart& part, uint32_t at) const {
  const CacheRows ring = part.cache->rows(input.layer, kWindow);
  const uint32_t most = ring.rows - config_.window->positions + 1;
  const kernels::Rows outputs = dense_rows(input.scratch.at(heads_at_), input.x.rows, config_.heads * head_dim());
  const bool is_chosen = needs_choice(part);
  const auto attend_rows = [&](uint32_t row, uint32_t rows, const PassPosition& position, uint32_t window) {
    const kernels::Slice entries = compressor_ ? compressor_->entries(*part.cache, input.layer).data : kernels::Slice();
    kernels::WindowAttendArgs args{.queries = rows_of(query_rows(input), row, rows).data,
                                   .ring = ring.data,
                                   .ring_rows = ring.rows,
                                   .window = window,
                                   .entries = entries,
                                   .every = every_,
                                   .sinks = sinks_,
                                   .out = rows_of(outputs, row, rows).data,
                                   .rows = rows,
                                   .heads = config_.heads,
                                   .dim = head_dim(),
                                   .first_position = position.first,
                                   .live = position.live,
                                   .scale = 1.0F / std::sqrt(static_cast<float>(head_dim())),
                                   .cache_dtype = options_.cache_dtype};
    if (is_chosen) args.choice = choice(input, row);
    queue.window_attend(args);
  };
  const uint32_t window = config_.window->positions;
  if (part.is_block) {
    DSPACK_CHECK(every_ == 0 && part.rows < most, "a block of drafts in a layer with entries, or without room");
    store(queue, rows_of(key_rows(input), at, part.rows), ring, part.position);
    // As if each row stood at the last position, with a window that begins where that of the position before does.
    for (uint32_t row = 0; row < part.rows; ++row)
      attend_rows(at + row, 1, after(part.position, part.rows - 1), window + part.rows);
    return;
  }
  for (uint32_t done = 0; done < part.rows; done += most) {
    const uint32_t rows = std::min(most, part.rows - done);
    store(queue, rows_of(key_rows(input), at + done, rows), ring, after(part.position, done));
    attend_rows(at + done, rows, after(part.position, done), window);
  }
}

void WindowAttention::remember(kernels::Queue& queue, const Input& input) const {
  DSPACK_CHECK(every_ == 0 && input.parts.size() == 1 && input.parts.front().rows == input.x.rows,
               "a layer with entries, or rows of several sequences");
  const PassPart& part = input.parts.front();
  const kernels::Rows keys = key_rows(input);
  kv_.apply(queue, input.x, keys);
  queue.rms_norm(keys, kv_norm_, config_.norm_epsilon, keys);
  rotate(queue, input, keys, 1, kernels::RopePairs::neighbours, false);
  store(queue, keys, part.cache->rows(input.layer, kWindow), part.position);
}

void WindowAttention::run(kernels::Queue& queue, const Input& input, const kernels::Rows& y,
                          const kernels::Rows& residual, const TraceScope& trace) const {
  project(queue, input, trace);
  if (compressor_) compressor_->run(queue, input);
  if (indexer_) indexer_->keys.run(queue, input);
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    if (needs_choice(part)) choose(queue, input, part, at);
    attend(queue, input, part, at);
  });
  const WindowConfig& window = *config_.window;
  const uint32_t width = config_.heads * head_dim();
  const kernels::Rows outputs = dense_rows(input.scratch.at(heads_at_), input.x.rows, width);
  rotate(queue, input, outputs, config_.heads, kernels::RopePairs::neighbours, true);
  const uint32_t projected = window.out_groups * window.out_rank;
  const kernels::Rows groups = dense_rows(input.scratch.at(groups_at_), input.x.rows, projected);
  queue.head_linear({.weight = o_a_.weight(),
                     .heads = window.out_groups,
                     .head_rows = window.out_rank,
                     .first_row = 0,
                     .rows_used = window.out_rank,
                     .x = outputs.data,
                     .x_row_stride = width,
                     .x_head_stride = width / window.out_groups,
                     .y = groups.data,
                     .y_row_stride = projected,
                     .y_head_stride = window.out_rank,
                     .rows = input.x.rows});
  if (!trace.on() && residual.rows > 0) return queue.add_linear(o_b_.weight(), groups, residual, y);
  apply(o_b_, queue, groups, y, trace, "o_b_proj");
  trace.output(y);
  if (residual.rows > 0) queue.add(residual, y);
}

}  // namespace dspack::runtime
