#include "runtime/model/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/config/config.h"
#include "runtime/model/rope.h"
#include "runtime/weights/equal_tensors.h"

namespace dspack::runtime {

namespace {

// Rows of logits that are computed at once; V3: 16 rows are 8 MB.
constexpr uint32_t kLogitRows = 16;
static_assert(kLogitRows >= kMaxRecordedRows);
// Positions of the rotary table that are computed at once, so that a long context needs no second copy of the table.
constexpr uint32_t kTableRows = 4096;

Result<void> add_head(WeightGroup& group, const ModelConfig& config, MixWeights& mix, kernels::Slice& norm,
                      Linear& head) {
  TRY(Residual::add_weights(group, config, mix, "hc_head", Residual::Mixture::at_end));
  TRY(group.add_vector(&norm, config.names->final_norm, config.hidden));
  return group.add_linear(&head, config.head_name(), config.vocab, config.hidden);
}

// A tied model may store a head in spite of that. It must equal the embedding: implementations differ in which they
// use.
Result<void> check_tied_head(const LoadContext& context, const ModelConfig& config, const std::stop_token& stop) {
  const format::Checkpoint& checkpoint = context.access.catalogue();
  const format::TensorEntry* head = checkpoint.find(config.names->head);
  const format::TensorEntry* embedding = checkpoint.find(config.names->embedding);
  if (!config.ties_head || head == nullptr || embedding == nullptr) return {};
  const bool has_digests = head->digest && embedding->digest;
  // From a distant place without digests, are_equal would compare samples only.
  if (has_digests || !context.access.weights().is_distant()) {
    TRY_ASSIGN(const bool equal, are_equal(context.access, *head, *embedding, stop));
    if (equal) return {};
  }
  return Error{ErrorKind::invalid,
               fmt::format("{}: config.json has \"tie_word_embeddings\": true, so the head is {}, but {}",
                           place_of(checkpoint, *head), config.names->embedding,
                           has_digests || !context.access.weights().is_distant()
                               ? "it differs; correct config.json, or remove one of them"
                               : "they cannot be compared over the network; copy the model to this machine (reshard)")};
}

Error interrupted() {
  return {ErrorKind::cancelled, "the run was interrupted"};
}

// Drafting never reads more rows than this: a further layer with more catches up on a prompt.
constexpr uint32_t kMaxDecodeRows = 16;

}  // namespace

Model::Model(const LoadContext& context, const ModelConfig& config, const ModelOptions& options,
             ExpertExecutor& executor)
    : device_(context.device),
      queue_(context.queue),
      executor_(executor),
      config_(config),
      options_(options),
      at_(lay_out(config_, options, plan_)),
      runner_(config_, options.attention(), options.max_rows, plan_),
      predictor_(config_, runner_.residual(), plan_) {
  if (!options_.layer_map.empty()) return;
  for (uint32_t layer = 0; layer < config.layers; ++layer)
    options_.layer_map.emplace_back(layer);
}

Model::Places Model::lay_out(const ModelConfig& config, const ModelOptions& options, ScratchPlan& plan) {
  Places places;
  places.residual = plan.add(uint64_t{options.max_rows} * Residual::width(config));
  places.logits = plan.add(uint64_t{kLogitRows} * config.vocab);
  places.position = plan.add(1);
  if (config.layers_by_token > 0) places.tokens = plan.add(options.max_rows);
  if (options.drafts_in_blocks) {
    places.stream_means = plan.add(uint64_t{options.max_rows} * MtpState::width(config));
    places.stream_shares = plan.add(uint64_t{options.max_rows} * config.streams->count);
  }
  return places;
}

uint64_t Model::scratch_bytes_for(const ModelConfig& config, const ModelOptions& options) {
  ScratchPlan plan;
  lay_out(config, options, plan);
  const LayerRunner runner(config, options.attention(), options.max_rows, plan);
  const RoutePredictor predictor(config, runner.residual(), plan);
  return plan.size_bytes() + position_table_values(config, options.context) * sizeof(float);
}

Result<uint64_t> Model::head_bytes(const LoadContext& context, const ModelConfig& config) {
  MixWeights mix;
  kernels::Slice norm;
  Linear head;
  WeightGroup group(context);
  TRY(add_head(group, config, mix, norm, head));
  return group.size_bytes();
}

Result<std::unique_ptr<Model>> Model::load(const LoadContext& context, const ModelConfig& config,
                                           const ModelOptions& options, ExpertExecutor& executor,
                                           const std::stop_token& stop) {
  DSPACK_CHECK(options.context > 0 && options.max_rows > 0 && options.wave_rows > 0, "a model without room");
  std::unique_ptr<Model> model(new Model(context, config, options, executor));
  TRY(model->make_position_tables());
  TRY(model->load_weights(context, stop));
  return model;
}

Result<void> Model::make_position_tables() {
  TRY_ASSIGN(position_memory_, device_.allocate(position_table_values(config_, options_.context) * sizeof(float)));
  const PositionTables tables = this->tables();
  for (uint32_t first = 0; first < options_.context; first += kTableRows) {
    const uint32_t count = std::min(kTableRows, options_.context - first);
    const std::vector<float> rows = rope_table(config_.rope, config_.rope_dim, first, count);
    queue_.upload(tables.cos_sin.at(uint64_t{first} * config_.rope_dim * sizeof(float)),
                  std::as_bytes(std::span(rows)));
    std::vector<float> entry_rows;
    if (config_.window) {
      entry_rows = rope_table(config_.window->rope, config_.rope_dim, first, count);
      queue_.upload(tables.entry_cos_sin.at(uint64_t{first} * config_.rope_dim * sizeof(float)),
                    std::as_bytes(std::span(entry_rows)));
    }
    std::vector<float> scales;
    if (!tables.query_scale.empty()) {
      scales = query_scale_table(config_.rope, first, count);
      queue_.upload(tables.query_scale.at(uint64_t{first} * 2 * sizeof(float)), std::as_bytes(std::span(scales)));
    }
    TRY(queue_.finish());
  }
  return {};
}

PositionTables Model::tables() const {
  return position_tables(config_, {.buffer = position_memory_.get(), .offset_bytes = 0}, options_.context);
}

Result<void> Model::load_weights(const LoadContext& context, const std::stop_token& stop) {
  TRY_ASSIGN(Embedding embedding, Embedding::make(context, config_.names->embedding, config_.vocab, config_.hidden));
  embedding_.emplace(std::move(embedding));
  TRY(check_tied_head(context, config_, stop));
  TRY_ASSIGN(layers_,
             LayerStore::load(context, config_, options_.attention(), options_.layer_map, options_.streaming, stop));
  WeightGroup head(context);
  TRY(add_head(head, config_, end_mix_, final_norm_, head_));
  head_work_ = head.work();
  TRY_ASSIGN(head_memory_, head.load(WeightPurpose::always_needed, stop));
  if (context.progress != nullptr) context.progress->advanced(head_memory_->size_bytes());
  return {};
}

Result<void> Model::check_device() const {
  if (const auto failed = queue_.failure()) return *failed;
  return {};
}

Result<Scratch> Model::make_scratch() const {
  TRY_ASSIGN(auto buffer, device_.allocate(plan_.size_bytes()));
  TRY_ASSIGN(auto forecast, device_.allocate_host(predictor_.forecast_bytes()));
  Scratch scratch(std::move(buffer), std::move(forecast));
  if (device_.is_host()) scratch.stages_ = std::make_unique<StageClock>();
  if (options_.drafts_in_blocks) {
    const uint32_t streams = config_.streams->count;
    const std::vector<float> shares(uint64_t{options_.max_rows} * streams, 1.0F / static_cast<float>(streams));
    queue_.upload({.buffer = scratch.buffer_.get(), .offset_bytes = at_.stream_shares},
                  std::as_bytes(std::span(shares)));
    TRY(queue_.finish());
  }
  return scratch;
}

KvShape Model::kv_shape() const {
  return runtime::kv_shape(config_, options_.attention(), options_.layer_map);
}

Result<Sequence> Model::make_sequence(Drafting drafting) const {
  const auto [depth, planes] = kv_shape();
  TRY_ASSIGN(KvCache cache, KvCache::make(device_, depth, options_.context, planes));
  Sequence sequence(queue_, std::move(cache));
  if (drafting == Drafting::none) return sequence;
  const KvShape further = runtime::kv_shape(config_, options_.attention(), config_.draft_layers());
  TRY_ASSIGN(KvCache of_module, KvCache::make(device_, further.layers, options_.context, further.planes));
  TRY_ASSIGN(auto residuals, device_.allocate(MtpState::residual_bytes_for(config_, options_.context)));
  sequence.mtp_ = MtpState(queue_, std::move(of_module), std::move(residuals),
                           MtpState::residuals_for(config_, options_.context), MtpState::width(config_));
  return sequence;
}

uint32_t Model::begin_batch(std::span<const SequenceTokens> batch, Scratch& scratch) const {
  DSPACK_CHECK(!batch.empty(), "a pass over nothing");
  ++scratch.generation_;
  scratch.tokens_.clear();
  scratch.parts_.clear();
  for (const SequenceTokens& part : batch) {
    const Sequence& sequence = part.sequence;
    DSPACK_CHECK(!part.tokens.empty() && part.tokens.size() <= sequence.capacity() - sequence.length(),
                 "the cache is full");
    DSPACK_CHECK(std::ranges::max(part.tokens) < config_.vocab, "a token outside the vocabulary");
    DSPACK_CHECK(sequence.cut_point(sequence.length()) == sequence.length(), "a sequence that cannot go on");
    DSPACK_CHECK(std::ranges::find(scratch.parts_, &sequence.cache(), &PassPart::cache) == scratch.parts_.end(),
                 "a sequence twice in one pass");
    scratch.tokens_.insert(scratch.tokens_.end(), part.tokens.begin(), part.tokens.end());
    scratch.parts_.push_back({.cache = &sequence.cache(),
                              .rows = static_cast<uint32_t>(part.tokens.size()),
                              .position = {.first = sequence.length()}});
  }
  DSPACK_CHECK(scratch.tokens_.size() <= options_.max_rows, "a pass of this length has no room");
  return static_cast<uint32_t>(scratch.tokens_.size());
}

Result<HiddenStates> Model::forward(std::span<const SequenceTokens> batch, Scratch& scratch,
                                    const std::stop_token& stop, const PassOptions& options) const {
  const uint32_t rows = begin_batch(batch, scratch);
  class Pending {
   public:
    explicit Pending(std::span<const SequenceTokens> parts) : parts_(parts) {}
    ~Pending() {
      for (const SequenceTokens& part : parts_)
        part.sequence.give_up(static_cast<uint32_t>(part.tokens.size()));
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    void finish() { parts_ = {}; }

   private:
    std::span<const SequenceTokens> parts_;
  } pending(batch);
  const kernels::Rows stream = residual_rows(scratch, rows);
  const kernels::Rows final = final_rows(scratch, rows);
  {
    const StageScope stage(scratch.stages(), Stage::embedding);
    kernels::Rows embedded = stream;
    embedded.cols = config_.hidden;
    TRY(embedding_->lookup(queue_, scratch.tokens_, embedded, stop));
    TraceScope(options.trace, "model.embed_tokens").output(embedded);
    runner_.residual().begin(queue_, stream);
    if (config_.layers_by_token > 0)
      queue_.upload(tokens_in(scratch), std::as_bytes(std::span<const uint32_t>(scratch.tokens_)));
  }
  if (stop.stop_requested()) return interrupted();  // a recorded step does not check
  DSPACK_CHECK(options.end == nullptr || rows <= kMaxRecordedRows, "too many rows for what ends the pass");
  if (options.end != nullptr) options.end->prepare();
  const auto operations = [&](const PassPosition& first) -> Result<void> {
    scratch.parts_.front().position = first;
    TRY(run_layers({.stream = stream, .parts = scratch.parts_, .scratch = scratch, .trace = options.trace}, stop));
    if (options.end != nullptr) options.end->enqueue(final);
    return {};
  };
  Sequence& first = batch.front().sequence;
  if (batch.size() == 1 && options.trace == nullptr && can_record()) {
    TRY(first.recorded_.run({.rows = rows,
                             .first = first.length(),
                             .end = options.end == nullptr ? 0 : options.end->number(),
                             .position = position_in(scratch)},
                            operations));
  } else {
    TRY(operations({.first = first.length()}));
  }
  pending.finish();
  uint32_t row = 0;
  for (const SequenceTokens& part : batch) {
    const auto count = static_cast<uint32_t>(part.tokens.size());
    part.sequence.append(part.tokens, rows_of(rows_for_drafts(scratch, rows), row, count));
    row += count;
  }
  if (options.end != nullptr) options.end->collect();
  TRY(queue_.finish());
  return HiddenStates{.residual = stream, .final = final};
}

// It blocks only for a streamed layer.
Result<const LayerWeights*> Model::weights_at(uint32_t index, const Scratch& scratch,
                                              const std::stop_token& stop) const {
  const StageScope stage(scratch.stages(), Stage::waiting);
  scratch.state_->reads_layer = true;
  auto weights = layers_->weights(index, stop);
  scratch.state_->reads_layer = false;
  return weights;
}

Result<void> Model::run_layers(const Pass& pass, const std::stop_token& stop) const {
  const bool is_foreseen = executor_.wants_forecast();
  uint32_t announced = 0;
  for (uint32_t index = 0; index < options_.layer_map.size(); ++index) {
    if (stop.stop_requested()) return interrupted();
    ++pass.scratch.state_->layers_begun;
    TRY_ASSIGN(const LayerWeights* weights, weights_at(index, pass.scratch, stop));
    announced = announce(std::max(announced, index), index, *weights, pass.scratch);
    const TraceScope scope =
        pass.trace == nullptr ? TraceScope() : TraceScope(pass.trace, layer_module(LayerId(index)));
    LayerRunner::Context context{.queue = queue_,
                                 .scratch = *pass.scratch.buffer_,
                                 .executor = executor_,
                                 .stop = stop,
                                 .trace = scope,
                                 .stages = pass.scratch.stages()};
    if (is_foreseen) {
      context.meanwhile = [&, weights](const kernels::Rows& stream, const kernels::Rows& shared) {
        foresee(index, *weights, pass.scratch, stream, shared);
      };
    }
    TRY(runner_.run(context, *weights,
                    {.stream = pass.stream,
                     .parts = pass.parts,
                     .tokens = tokens_in(pass.scratch),
                     .layer = index,
                     .tables = tables(),
                     // A trace sees the indexer's modules for every row; attention has the same bits.
                     .choice = pass.trace != nullptr ? ChoiceUse::kept : ChoiceUse::as_needed}));
    if (options_.drafts_in_blocks) keep_for_stages(index, pass);
    if (pass.trace != nullptr) TRY(pass.trace->status());
  }
  const kernels::Rows final = final_rows(pass.scratch, pass.stream.rows);
  runtime::normalise(queue_, end_of(pass.stream, end_mix_, pass.scratch, final), final_norm_, config_.norm_epsilon,
                     final, TraceScope(pass.trace, "model"), "norm", {&head_.weight(), 1});
  return {};
}

void Model::keep_for_stages(uint32_t index, const Pass& pass) const {
  const std::vector<LayerId>& sources = config_.dspark->layers;
  const auto source = std::ranges::find(sources, options_.layer_map[index]);
  if (source == sources.end()) return;
  const uint32_t streams = config_.streams->count;
  kernels::Rows mean = rows_for_drafts(pass.scratch, pass.stream.rows);
  mean.cols = config_.hidden;
  mean.data = mean.data.at(static_cast<uint64_t>(source - sources.begin()) * config_.hidden * sizeof(float));
  queue_.combine(mean, dense_rows(pass.stream.data, pass.stream.rows * streams, config_.hidden),
                 {.buffer = pass.scratch.buffer_.get(), .offset_bytes = at_.stream_shares}, streams);
}

kernels::Rows Model::rows_for_drafts(const Scratch& scratch, uint32_t rows) const {
  if (!options_.drafts_in_blocks) return residual_rows(scratch, rows);
  return rows_at(scratch, at_.stream_means, rows, MtpState::width(config_));
}

bool Model::can_record() const {
  return executor_.can_record() && options_.streaming.layers.empty();
}

kernels::Rows Model::rows_at(const Scratch& scratch, uint64_t offset, uint32_t rows, uint32_t cols) const {
  return {
      .data = {.buffer = scratch.buffer_.get(), .offset_bytes = offset}, .rows = rows, .cols = cols, .stride = cols};
}

kernels::Slice Model::position_in(const Scratch& scratch) const {
  return {.buffer = scratch.buffer_.get(), .offset_bytes = at_.position};
}

kernels::Slice Model::tokens_in(const Scratch& scratch) const {
  return config_.layers_by_token == 0 ? kernels::Slice()
                                      : kernels::Slice{.buffer = scratch.buffer_.get(), .offset_bytes = at_.tokens};
}

kernels::Rows Model::residual_rows(const Scratch& scratch, uint32_t rows) const {
  DSPACK_CHECK(rows <= options_.max_rows, "the scratch memory is smaller");
  return rows_at(scratch, at_.residual, rows, Residual::width(config_));
}

kernels::Rows Model::final_rows(const Scratch& scratch, uint32_t rows) const {
  return rows_at(scratch, runner_.idle_rows_at(), rows, config_.hidden);
}

kernels::Rows Model::score_rows(const Scratch& scratch, uint32_t rows) const {
  return rows_at(scratch, at_.logits, rows, config_.vocab);
}

uint32_t Model::announce(uint32_t first, uint32_t index, const LayerWeights& weights, const Scratch& scratch) const {
  for (; first < options_.layer_map.size(); ++first) {
    const LayerWeights* const layer = first == index ? &weights : layers_->at_hand(options_.layer_map[first]);
    if (layer == nullptr) break;
    const RouterWeights& router = layer->moe.router;
    if (router.by_token != nullptr) executor_.announce(layer->id, Router(config_).known(router, scratch.tokens_));
  }
  return first;
}

void Model::foresee(uint32_t index, const LayerWeights& weights, Scratch& scratch, const kernels::Rows& stream,
                    const kernels::Rows& shared) const {
  const auto next = std::find_if(options_.layer_map.begin() + index + 1, options_.layer_map.end(),
                                 [&](LayerId layer) { return config_.is_moe(layer); });
  if (next == options_.layer_map.end()) return;
  const LayerWeights* following = layers_->at_hand(*next);
  if (following == nullptr) return;                       // it streams: its router may not be in memory
  if (following->moe.router.by_token != nullptr) return;  // already announced
  const kernels::Slice mix = runner_.residual().mix_in(*scratch.buffer_, 0);
  executor_.expect(*next, predictor_.predict(
                              queue_, {.scratch = *scratch.buffer_, .forecast = *scratch.forecast_}, runner_.residual(),
                              {.layer = weights, .stream = stream, .mix = mix, .shared = shared}, *following));
}

kernels::Rows Model::end_of(const kernels::Rows& stream, const MixWeights& mix, const Scratch& scratch,
                            const kernels::Rows& place) const {
  const Residual& residual = runner_.residual();
  return residual.end({.queue = queue_, .mix = residual.mix_in(*scratch.buffer_, 0), .weights = mix}, stream, place);
}

void Model::normalise(const kernels::Rows& residual, const kernels::Rows& final) const {
  queue_.rms_norm(residual, final_norm_, config_.norm_epsilon, final);
}

Result<void> Model::run_further_layers(const FurtherLayers& layers, const kernels::Rows& hidden, Scratch& scratch,
                                       const std::stop_token& stop) const {
  const KvCache& cache = layers.cache;
  ++scratch.generation_;
  DSPACK_CHECK(hidden.rows <= options_.max_rows && hidden.rows <= cache.capacity() - cache.length(), "no room");
  DSPACK_CHECK(!layers.is_block || hidden.rows <= options_.wave_rows, "a block is one wave");
  const bool is_long = hidden.rows > kMaxDecodeRows;
  executor_.begin_pass(
      {.phase = is_long ? Phase::prefill : Phase::decode, .rows = hidden.rows, .draft_rows = hidden.rows});
  const auto run = [&](const PassPosition& position) -> Result<void> {
    const PassPart part{.cache = &cache, .rows = hidden.rows, .position = position, .is_block = layers.is_block};
    for (uint32_t i = 0; i < layers.weights.size(); ++i) {
      TRY(runner_.run(
          {.queue = queue_,
           .scratch = *scratch.buffer_,
           .executor = executor_,
           .stop = stop,
           .stages = scratch.stages()},
          *layers.weights[i],
          {.stream = hidden, .parts = std::span(&part, 1), .layer = i, .tables = tables(), .choice = layers.choice}));
    }
    return {};
  };
  if (!can_record()) return run({.first = cache.length()});
  if (stop.stop_requested()) return interrupted();
  return layers.recorded.run({.rows = hidden.rows,
                              .first = cache.length(),
                              .end = static_cast<uint32_t>(layers.choice),
                              .position = position_in(scratch)},
                             run);
}

void Model::remember(const FurtherLayers& layers, const kernels::Rows& x, Scratch& scratch) const {
  const KvCache& cache = layers.cache;
  ++scratch.generation_;
  DSPACK_CHECK(x.rows <= options_.wave_rows && x.rows <= cache.capacity() - cache.length(), "no room");
  const PassPart part{.cache = &cache, .rows = x.rows, .position = {.first = cache.length()}};
  const StageScope stage(scratch.stages(), Stage::attention);
  for (uint32_t i = 0; i < layers.weights.size(); ++i) {
    layers.weights[i]->attention->remember(
        queue_,
        {.x = x, .parts = std::span(&part, 1), .layer = i, .tables = tables(), .scratch = attention_scratch(scratch)});
  }
}

void Model::score(const kernels::Rows& final, const Linear& head, const Scratch& scratch) const {
  DSPACK_CHECK(final.rows <= kMaxRecordedRows, "more rows than are scored at once");
  const StageScope stage(scratch.stages(), Stage::head);
  head.apply(queue_, final, score_rows(scratch, final.rows));
}

void Model::logits(const kernels::Rows& final, const Linear& head, Scratch& scratch, std::span<float> into,
                   Trace* trace) const {
  DSPACK_CHECK(into.size() == size_t{final.rows} * config_.vocab, "no place for the logits");
  ++scratch.generation_;
  const StageScope stage(scratch.stages(), Stage::head);
  const TraceScope module(trace, "lm_head");
  for (uint32_t first = 0; first < final.rows; first += kLogitRows) {
    const uint32_t count = std::min(kLogitRows, final.rows - first);
    const kernels::Rows wave = score_rows(scratch, count);
    module.input(rows_of(final, first, count));
    head.apply(queue_, rows_of(final, first, count), wave);
    module.output(wave);
    const auto part = into.subspan(size_t{first} * config_.vocab, size_t{count} * config_.vocab);
    queue_.download(std::as_writable_bytes(part), wave.data);
    queue_.synchronize();
  }
}

uint64_t Model::weight_bytes() const {
  return head_work_.bytes + layers_->memory_bytes();
}

uint64_t Model::cache_bytes() const {
  const KvShape shape = kv_shape();
  return KvCache::bytes_of(shape.layers, options_.context, shape.planes).value_or(UINT64_MAX);
}

}  // namespace dspack::runtime
