#include "runtime/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/sample_weights.h"
#include "runtime/model/names.h"
#include "runtime/model/rope.h"
#include "runtime/weights/equal_tensors.h"

namespace dspack::runtime {

namespace {

// Rows of logits at once; 16 of V3 are 8 MB.
constexpr uint32_t kLogitRows = 16;
static_assert(kLogitRows >= kMostRecordedRows);
// Positions of the rotary table that are made at once, so that a long context needs no second copy of it.
constexpr uint32_t kTableRows = 4096;

Result<void> add_head(WeightGroup& group, const ModelConfig& config, kernels::Slice& norm, Linear& head) {
  TRY(group.add_vector(&norm, names::kFinalNorm, config.hidden));
  return group.add_linear(&head, config.head_name(), config.vocab, config.hidden);
}

// A tied model that is stored with a head all the same: implementations disagree about which of two tables counts.
Result<void> check_tied_head(const LoadContext& context, const ModelConfig& config, const std::stop_token& stop) {
  const format::Checkpoint& checkpoint = context.files.checkpoint();
  const format::TensorEntry* head = checkpoint.find(names::kHead);
  const format::TensorEntry* embedding = checkpoint.find(names::kEmbedding);
  if (!config.ties_head || head == nullptr || embedding == nullptr) return {};
  const bool has_digests = head->digest && embedding->digest;
  // Of a distant place without digests only pieces would be compared.
  if (has_digests || !context.files.storage().is_distant()) {
    TRY_ASSIGN(const bool equal, are_equal(context.files, *head, *embedding, stop));
    if (equal) return {};
  }
  return Error{ErrorKind::invalid,
               fmt::format("{}: config.json has \"tie_word_embeddings\": true, by which the head is {}, and {}",
                           place_of(checkpoint, *head), names::kEmbedding,
                           has_digests || !context.files.storage().is_distant()
                               ? "it differs; which of them is meant?"
                               : "from here they cannot be compared; copy the model to this machine (reshard)")};
}

Error interrupted() {
  return {ErrorKind::cancelled, "the run was interrupted"};
}

// A further layer that reads more rows than drafting ever does catches up on a prompt.
constexpr uint32_t kMostDecodeRows = 16;

}  // namespace

Model::Model(const LoadContext& context, const ModelConfig& config, const ModelOptions& options,
             ExpertExecutor& executor)
    : device_(context.device),
      queue_(context.queue),
      executor_(executor),
      config_(config),
      options_(options),
      at_(lay_out(config_, options, plan_)),
      runner_(make_runner(config_, options, plan_)),
      predictor_(config_, plan_) {
  if (!options_.layer_map.empty()) return;
  for (uint32_t layer = 0; layer < config.layers; ++layer)
    options_.layer_map.emplace_back(layer);
}

Model::Places Model::lay_out(const ModelConfig& config, const ModelOptions& options, ScratchPlan& plan) {
  Places places;
  places.residual = plan.add(uint64_t{options.max_rows} * config.hidden);
  places.logits = plan.add(uint64_t{kLogitRows} * config.vocab);
  places.cos_sin = plan.add(uint64_t{options.context} * config.rope_dim);
  places.position = plan.add(1);
  places.choice = plan.add(kMostRecordedRows);
  places.draw = plan.add(sizeof(TokenDraw) / sizeof(float));
  return places;
}

LayerRunner Model::make_runner(const ModelConfig& config, const ModelOptions& options, ScratchPlan& plan) {
  return {config,
          {.form = options.attention, .context = options.context, .cache_dtype = options.kv_dtype},
          options.max_rows,
          options.wave_rows,
          plan};
}

uint64_t Model::scratch_bytes_for(const ModelConfig& config, const ModelOptions& options) {
  ScratchPlan plan;
  lay_out(config, options, plan);
  make_runner(config, options, plan);
  const RoutePredictor predictor(config, plan);
  return plan.size_bytes();
}

Result<uint64_t> Model::head_bytes(const LoadContext& context, const ModelConfig& config) {
  kernels::Slice norm;
  Linear head;
  WeightGroup group(context);
  TRY(add_head(group, config, norm, head));
  return group.size_bytes();
}

Result<std::unique_ptr<Model>> Model::load(const LoadContext& context, const ModelConfig& config,
                                           const ModelOptions& options, ExpertExecutor& executor,
                                           const std::stop_token& stop) {
  DSPACK_CHECK(options.context > 0 && options.max_rows > 0 && options.wave_rows > 0, "a model without room");
  std::unique_ptr<Model> model(new Model(context, config, options, executor));
  TRY(model->allocate());
  TRY(model->load_weights(context, stop));
  return model;
}

Result<void> Model::allocate() {
  const auto depth = static_cast<uint32_t>(options_.layer_map.size());
  TRY_ASSIGN(KvCache cache, KvCache::make(device_, depth, options_.context, config_.cache_shape(), options_.kv_dtype));
  cache_.emplace(std::move(cache));
  TRY_ASSIGN(scratch_, device_.allocate(plan_.size_bytes()));
  const kernels::Slice position{.buffer = scratch_.get(), .offset_bytes = at_.position};
  recorded_.emplace(queue_, position, options_.context);
  recorded_drawing_.emplace(queue_, position, options_.context);
  const kernels::Slice table{.buffer = scratch_.get(), .offset_bytes = at_.cos_sin};
  for (uint32_t first = 0; first < options_.context; first += kTableRows) {
    const uint32_t count = std::min(kTableRows, options_.context - first);
    const std::vector<float> rows = rope_table(config_.rope, config_.rope_dim, first, count);
    queue_.upload(table.at(uint64_t{first} * config_.rope_dim * sizeof(float)), std::as_bytes(std::span(rows)));
    TRY(queue_.finish());
  }
  return {};
}

Result<void> Model::load_weights(const LoadContext& context, const std::stop_token& stop) {
  TRY_ASSIGN(Embedding embedding, Embedding::make(context.files, names::kEmbedding, config_.vocab, config_.hidden));
  embedding_.emplace(embedding);
  TRY(check_tied_head(context, config_, stop));
  TRY_ASSIGN(layers_, LayerStore::load(context, config_, options_.layer_map, options_.streaming, stop));
  WeightGroup head(context);
  TRY(add_head(head, config_, final_norm_, head_));
  TRY_ASSIGN(head_memory_, head.load(ReadPurpose::always_needed, stop));
  return {};
}

Result<HiddenStates> Model::forward(std::span<const uint32_t> tokens, const std::stop_token& stop,
                                    const ForwardObserver& observer, const std::optional<TokenDraw>& draw) {
  DSPACK_CHECK(!tokens.empty() && tokens.size() <= options_.max_rows, "a chunk of this length has no room");
  DSPACK_CHECK(tokens.size() <= cache_->capacity() - cache_->length(), "the cache is full");
  DSPACK_CHECK(std::ranges::max(tokens) < config_.vocab, "a token outside the vocabulary");
  const auto rows = static_cast<uint32_t>(tokens.size());
  const kernels::Rows hidden = rows_at(at_.residual, rows);
  TRY(embedding_->lookup(queue_, tokens, hidden, stop));
  TraceScope(trace_, "model.embed_tokens").output(hidden);
  if (observer) observer(std::nullopt, hidden);
  if (stop.stop_requested()) return interrupted();  // a step asks no more
  scored_rows_ = 0;
  const bool is_scored = can_record() && !observer && !device_.is_host() && rows <= kMostRecordedRows;
  const bool is_drawn = is_scored && draw && rows == 1 && can_draw();
  if (is_drawn) upload(*draw);
  if (can_record() && !observer) {
    const auto operations = [&](const PassPosition& position) -> Result<void> {
      TRY(run_layers(hidden, position, stop, {}));
      if (is_scored) score(rows_at(runner_.idle_rows_at(), rows), head_, is_drawn ? Choice::drawn : Choice::highest);
      return {};
    };
    TRY((is_drawn ? recorded_drawing_ : recorded_)->run(rows, cache_->length(), operations));
  } else {
    TRY(run_layers(hidden, {.first = cache_->length()}, stop, observer));
  }
  TRY(queue_.finish());
  cache_->advance(rows);
  if (is_scored) scored_rows_ = rows;
  if (!is_drawn) draw_.reset();
  return HiddenStates{.residual = hidden, .final = rows_at(runner_.idle_rows_at(), rows)};
}

Result<void> Model::run_layers(const kernels::Rows& hidden, const PassPosition& position, const std::stop_token& stop,
                               const ForwardObserver& observer) {
  const bool is_foreseen = executor_.wants_forecast();
  for (uint32_t index = 0; index < options_.layer_map.size(); ++index) {
    if (stop.stop_requested()) return interrupted();
    TRY_ASSIGN(const LayerWeights* weights, layers_->weights(index, stop));
    const TraceScope scope = trace_ == nullptr ? TraceScope() : TraceScope(trace_, names::layer(LayerId(index)));
    LayerRunner::Context context{
        .queue = queue_, .scratch = *scratch_, .executor = executor_, .stop = stop, .trace = scope};
    if (is_foreseen) {
      context.meanwhile = [&](const kernels::Rows& residual, const kernels::Rows& shared) {
        foresee(index, residual, shared);
      };
    }
    TRY(runner_.run(context, *weights,
                    {.hidden = hidden,
                     .cache = cache_->layer(index),
                     .position = position,
                     .cos_sin = {.buffer = scratch_.get(), .offset_bytes = at_.cos_sin}}));
    if (observer) observer(index, hidden);
    if (trace_ != nullptr) TRY(trace_->status());
  }
  runtime::normalise(queue_, hidden, final_norm_, config_.norm_epsilon, rows_at(runner_.idle_rows_at(), hidden.rows),
                     TraceScope(trace_, "model"), "norm");
  return {};
}

bool Model::can_record() const {
  return executor_.can_record() && trace_ == nullptr && options_.streaming.layers.empty() &&
         options_.attention == AttentionForm::absorbed;
}

kernels::Rows Model::rows_at(uint64_t offset, uint32_t rows) const {
  return {.data = {.buffer = scratch_.get(), .offset_bytes = offset},
          .rows = rows,
          .cols = config_.hidden,
          .stride = config_.hidden};
}

void Model::foresee(uint32_t index, const kernels::Rows& residual, const kernels::Rows& shared) {
  const auto next = std::find_if(options_.layer_map.begin() + index + 1, options_.layer_map.end(),
                                 [&](LayerId layer) { return config_.is_moe(layer); });
  if (next == options_.layer_map.end()) return;
  const LayerWeights* weights = layers_->at_hand(*next);
  if (weights == nullptr) return;  // its router may not have arrived
  executor_.expect(*next, predictor_.predict(queue_, *scratch_, *weights, residual, shared));
}

kernels::Rows Model::workspace(uint32_t rows) const {
  DSPACK_CHECK(rows <= options_.max_rows, "the workspace is smaller");
  return rows_at(at_.residual, rows);
}

void Model::normalise(const kernels::Rows& residual, const kernels::Rows& final) {
  queue_.rms_norm(residual, final_norm_, config_.norm_epsilon, final);
}

Result<void> Model::run_further_layer(const FurtherLayer& layer, const kernels::Rows& hidden,
                                      const std::stop_token& stop) {
  const KvCache& cache = layer.cache;
  scored_rows_ = 0;  // the rows that were scored lie where the layer computes
  DSPACK_CHECK(hidden.rows <= options_.max_rows && hidden.rows <= cache.capacity() - cache.length(), "no room");
  const bool is_long = hidden.rows > kMostDecodeRows;
  executor_.begin_pass(
      {.phase = is_long ? Phase::prefill : Phase::decode, .rows = hidden.rows, .draft_rows = hidden.rows});
  const auto run = [&](const PassPosition& position) {
    return runner_.run({.queue = queue_, .scratch = *scratch_, .executor = executor_, .stop = stop}, layer.weights,
                       {.hidden = hidden,
                        .cache = cache.layer(0),
                        .position = position,
                        .cos_sin = {.buffer = scratch_.get(), .offset_bytes = at_.cos_sin}});
  };
  if (!can_record()) return run({.first = cache.length()});
  if (stop.stop_requested()) return interrupted();
  return layer.recorded.run(hidden.rows, cache.length(), run);
}

kernels::Rows Model::logits_at(uint32_t first, uint32_t rows) const {
  return {
      .data = {.buffer = scratch_.get(), .offset_bytes = at_.logits + uint64_t{first} * config_.vocab * sizeof(float)},
      .rows = rows,
      .cols = config_.vocab,
      .stride = config_.vocab};
}

// At most kMostRecordedRows.
void Model::score(const kernels::Rows& final, const Linear& head, Choice choice) {
  const kernels::Rows logits = logits_at(0, final.rows);
  head.apply(queue_, final, logits);
  choose(logits, choice);
}

void Model::choose(const kernels::Rows& logits, Choice choice) {
  const kernels::Slice ids{.buffer = scratch_.get(), .offset_bytes = at_.choice};
  if (choice == Choice::highest) return queue_.argmax(logits, ids);
  const kernels::Slice draw{.buffer = scratch_.get(), .offset_bytes = at_.draw};
  queue_.sample({.logits = logits,
                 .settings = draw.at(offsetof(TokenDraw, settings)),
                 .uniforms = draw.at(offsetof(TokenDraw, uniform)),
                 .ids = ids});
}

// Borrows draw_ until the queue is synchronised.
void Model::upload(const TokenDraw& draw) {
  draw_ = draw;
  queue_.upload({.buffer = scratch_.get(), .offset_bytes = at_.draw}, std::as_bytes(std::span(&*draw_, 1)));
}

std::vector<uint32_t> Model::chosen(uint32_t first, uint32_t rows) {
  std::vector<uint32_t> tokens(rows);
  const kernels::Slice choices{.buffer = scratch_.get(), .offset_bytes = at_.choice};
  queue_.download(std::as_writable_bytes(std::span(tokens)), choices.at(uint64_t{first} * sizeof(uint32_t)));
  queue_.synchronize();
  return tokens;
}

bool Model::can_draw() const {
  return config_.vocab <= kernels::kMostSampled;
}

std::optional<uint32_t> Model::scored_at(const kernels::Rows& final) const {
  const uint64_t begin = runner_.idle_rows_at();
  if (final.data.buffer != scratch_.get() || final.data.offset_bytes < begin) return std::nullopt;
  const uint64_t first = (final.data.offset_bytes - begin) / (uint64_t{config_.hidden} * sizeof(float));
  if (first + final.rows > scored_rows_) return std::nullopt;
  return static_cast<uint32_t>(first);
}

std::optional<std::vector<uint32_t>> Model::likeliest(const kernels::Rows& final) {
  return likeliest(final, head_);
}

std::optional<std::vector<uint32_t>> Model::likeliest(const kernels::Rows& final, const Linear& head) {
  if (device_.is_host() || trace_ != nullptr || final.rows > kMostRecordedRows) return std::nullopt;
  std::optional<uint32_t> first = &head == &head_ ? scored_at(final) : std::nullopt;
  if (!first || draw_) {
    scored_rows_ = 0;  // their place is taken
    draw_.reset();
    score(final, head, Choice::highest);
    first = 0;
  }
  const std::vector<uint32_t> tokens = chosen(*first, final.rows);
  // Infinity and NaN are the largest there are, so it is enough to look at these.
  std::vector<float> highest(tokens.size());
  for (uint32_t row = 0; row < final.rows; ++row) {
    DSPACK_CHECK(tokens[row] < config_.vocab, "the highest of other logits");
    queue_.download(std::as_writable_bytes(std::span(highest).subspan(row, 1)),
                    logits_at(*first + row, 1).data.at(uint64_t{tokens[row]} * sizeof(float)));
  }
  queue_.synchronize();
  const bool are_finite = std::ranges::all_of(highest, [](float logit) { return std::isfinite(logit); });
  return are_finite ? std::optional(tokens) : std::nullopt;
}

std::optional<uint32_t> Model::drawn(const kernels::Rows& final, const TokenDraw& draw) {
  DSPACK_CHECK(final.rows == 1, "one hidden state at a time");
  if (device_.is_host() || trace_ != nullptr || !can_draw()) return std::nullopt;
  std::optional<uint32_t> row = scored_at(final);
  if (!row || draw_ != draw) {
    scored_rows_ = 0;  // their place is taken
    upload(draw);
    score(final, head_, Choice::drawn);
    row = 0;
  }
  const uint32_t token = chosen(*row, 1).front();
  return token == kernels::kNoToken ? std::nullopt : std::optional(token);
}

void Model::logits(const kernels::Rows& final, std::span<float> into) {
  logits(final, head_, into);
}

void Model::logits(const kernels::Rows& final, const Linear& head, std::span<float> into) {
  DSPACK_CHECK(into.size() == size_t{final.rows} * config_.vocab, "no place for the logits");
  const std::optional<uint32_t> scored = &head == &head_ ? scored_at(final) : std::nullopt;
  if (scored) {
    queue_.download(std::as_writable_bytes(into), logits_at(*scored, final.rows).data);
    queue_.synchronize();
    return;
  }
  scored_rows_ = 0;  // their place is taken
  for (uint32_t first = 0; first < final.rows; first += kLogitRows) {
    const uint32_t count = std::min(kLogitRows, final.rows - first);
    const kernels::Rows wave = logits_at(0, count);
    const TraceScope module(&head == &head_ ? trace_ : nullptr, "lm_head");
    module.input(rows_of(final, first, count));
    head.apply(queue_, rows_of(final, first, count), wave);
    module.output(wave);
    const auto part = into.subspan(size_t{first} * config_.vocab, size_t{count} * config_.vocab);
    queue_.download(std::as_writable_bytes(part), wave.data);
    queue_.synchronize();
  }
}

uint64_t Model::weight_bytes() const {
  return head_memory_->size_bytes() + layers_->memory_bytes();
}

uint64_t Model::scratch_bytes() const {
  return scratch_->size_bytes();
}

}  // namespace dspack::runtime
