#include "runtime/model/mtp.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/model/names.h"
#include "runtime/weights/equal_tensors.h"

namespace dspack::runtime {

namespace {

// Pairs of embedding and hidden state at once; of V3, 15 MB.
constexpr uint32_t kWaveRows = 256;

std::string name_of(const ModelConfig& config, std::string_view part) {
  return fmt::format("{}.{}", names::layer(LayerId(config.layers)), part);
}

}  // namespace

bool MtpModule::is_present(const format::Checkpoint& checkpoint, const ModelConfig& config) {
  return config.mtp_layers > 0 && checkpoint.find(name_of(config, "eh_proj.weight")) != nullptr;
}

MtpModule::MtpModule(const LoadContext& context, Model& model, KvCache cache)
    : queue_(context.queue), model_(model), cache_(std::move(cache)) {}

Result<std::unique_ptr<MtpModule>> MtpModule::load(const LoadContext& context, Model& model,
                                                   const std::stop_token& stop) {
  const ModelConfig& config = model.config();
  const uint32_t context_positions = model.cache().capacity();
  TRY_ASSIGN(KvCache cache,
             KvCache::make(context.device, 1, context_positions, config.cache_shape(), model.cache().dtype()));
  std::unique_ptr<MtpModule> module(new MtpModule(context, model, std::move(cache)));
  module->at_ = lay_out(config, context_positions);
  TRY_ASSIGN(module->scratch_, context.device.allocate(module->at_.size_bytes));
  module->recorded_.emplace(module->queue_, kernels::Slice{module->scratch_.get(), module->at_.position},
                            context_positions);
  const uint64_t before = context.files.bytes_read(ReadPurpose::always_needed);
  TRY(module->load_weights(context, stop));
  TRY(module->share_or_load_head(context, stop));
  TRY(module->choose_embedding(context));
  module->bytes_read_ = context.files.bytes_read(ReadPurpose::always_needed) - before;
  return module;
}

Result<WeightGroup> MtpModule::find_own(const LoadContext& context, const ModelConfig& config, Own& own) {
  WeightGroup group(context);
  TRY(group.add_vector(&own.embedding_norm, name_of(config, "enorm.weight"), config.hidden));
  TRY(group.add_vector(&own.hidden_norm, name_of(config, "hnorm.weight"), config.hidden));
  TRY(group.add_vector(&own.output_norm, name_of(config, "shared_head.norm.weight"), config.hidden));
  TRY(group.add_linear(&own.projection, name_of(config, "eh_proj.weight"), config.hidden, 2 * config.hidden));
  return group;
}

MtpModule::Places MtpModule::lay_out(const ModelConfig& config, uint32_t positions) {
  ScratchPlan plan;
  Places places;
  places.residuals = plan.add(uint64_t{positions} * config.hidden);
  places.pairs = plan.add(uint64_t{kWaveRows} * 2 * config.hidden);
  places.position = plan.add(1);
  places.size_bytes = plan.size_bytes();
  return places;
}

Result<uint64_t> MtpModule::bytes_for(const LoadContext& context, const ModelConfig& config, uint32_t positions,
                                      Dtype cache_dtype) {
  const auto cache = KvCache::bytes_of(1, positions, config.cache_shape(), cache_dtype);
  if (!cache) return Error{ErrorKind::budget, "the MTP module's KV cache would exceed 2^64 bytes; use less --ctx"};
  LayerWeights layer;
  Own own;
  TRY_ASSIGN(const WeightGroup layer_group, find_layer(context, config, LayerId(config.layers), layer));
  TRY_ASSIGN(const WeightGroup own_group, find_own(context, config, own));
  const format::Checkpoint& checkpoint = context.files.checkpoint();
  const format::TensorEntry* head = checkpoint.find(name_of(config, "shared_head.head.weight"));
  const format::TensorEntry* original = checkpoint.find(config.head_name());
  const bool shared = head == nullptr || (original != nullptr && head->digest && head->digest == original->digest);
  return layer_group.size_bytes() + own_group.size_bytes() + *cache + lay_out(config, positions).size_bytes +
         (shared ? 0 : head->range.size());
}

Result<void> MtpModule::load_weights(const LoadContext& context, const std::stop_token& stop) {
  const ModelConfig& config = model_.config();
  TRY_ASSIGN(layer_, load_layer(context, config, LayerId(config.layers), stop));
  TRY_ASSIGN(WeightGroup own, find_own(context, config, own_));
  TRY_ASSIGN(own_memory_, own.load(ReadPurpose::always_needed, stop));
  return {};
}

Result<void> MtpModule::share_or_load_head(const LoadContext& context, const std::stop_token& stop) {
  const format::Checkpoint& checkpoint = context.files.checkpoint();
  const std::string name = name_of(model_.config(), "shared_head.head.weight");
  const format::TensorEntry* copy = checkpoint.find(name);
  const format::TensorEntry* original = checkpoint.find(model_.config().head_name());
  if (copy == nullptr) return {};
  if (original != nullptr) {
    TRY_ASSIGN(const bool equal, are_equal(context.files, *copy, *original, stop));
    if (equal) return {};
  }
  head_ = std::make_unique<Linear>();
  WeightGroup group(context);
  TRY(group.add_linear(head_.get(), name, model_.config().vocab, model_.config().hidden));
  TRY_ASSIGN(head_memory_, group.load(ReadPurpose::always_needed, stop));
  return {};
}

// The copy costs no memory, so without digests it is not compared: it is right in any case.
Result<void> MtpModule::choose_embedding(const LoadContext& context) {
  const format::Checkpoint& checkpoint = context.files.checkpoint();
  const std::string name = name_of(model_.config(), "embed_tokens.weight");
  const format::TensorEntry* copy = checkpoint.find(name);
  const format::TensorEntry* original = checkpoint.find(names::kEmbedding);
  if (copy == nullptr) return {};
  if (original != nullptr && copy->digest && copy->digest == original->digest) return {};
  TRY_ASSIGN(Embedding embedding, Embedding::make(context.files, name, model_.config().vocab, model_.config().hidden));
  embedding_.emplace(embedding);
  return {};
}

kernels::Rows MtpModule::place(uint64_t offset, uint32_t rows, uint32_t cols) const {
  return {.data = {.buffer = scratch_.get(), .offset_bytes = offset}, .rows = rows, .cols = cols, .stride = cols};
}

void MtpModule::observe(const kernels::Rows& residual) {
  DSPACK_CHECK(residual.rows <= cache_.capacity() - cache_.length() - pending_, "more positions than the context has");
  const uint64_t row_bytes = uint64_t{residual.cols} * sizeof(float);
  const kernels::Rows residuals = place(at_.residuals, cache_.capacity(), residual.cols);
  queue_.copy(rows_of(residuals, pending_, residual.rows).data, residual.data, residual.rows * row_bytes);
  pending_ += residual.rows;
  caught_up_ = 0;
}

void MtpModule::truncate(uint32_t length) {
  if (length >= cache_.length()) {
    pending_ = std::min(pending_, length - cache_.length());
    return;
  }
  cache_.truncate(length);
  pending_ = 0;
  caught_up_ = 0;
}

// z = eh_proj [enorm(embedding of next) ; hnorm(hidden)], a wave of rows at a time.
Result<void> MtpModule::project(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                                const std::stop_token& stop) {
  const uint32_t width = model_.config().hidden;
  const float epsilon = model_.config().norm_epsilon;
  const Embedding& embedding = embedding_ ? *embedding_ : model_.embedding();
  for (uint32_t first = 0; first < hidden.rows; first += kWaveRows) {
    const uint32_t count = std::min(kWaveRows, hidden.rows - first);
    const kernels::Rows pairs = place(at_.pairs, count, 2 * width);
    kernels::Rows left = pairs;
    left.cols = width;
    kernels::Rows right = left;
    right.data = left.data.at(uint64_t{width} * sizeof(float));
    TRY(embedding.lookup(queue_, next.subspan(first, count), left, stop));
    queue_.rms_norm(left, own_.embedding_norm, epsilon, left);
    queue_.rms_norm(rows_of(hidden, first, count), own_.hidden_norm, epsilon, right);
    own_.projection.apply(queue_, pairs, rows_of(z, first, count));
  }
  return {};
}

Result<void> MtpModule::catch_up(std::span<const uint32_t> next, MtpHidden hidden, const std::stop_token& stop,
                                 const RowsCallback& on_rows) {
  DSPACK_CHECK(pending_ > 0 && next.size() == pending_, "one token must follow each pending position");
  const kernels::Rows residuals = place(at_.residuals, pending_, model_.config().hidden);
  const uint32_t start = cache_.length();
  const auto run = [&](uint32_t first, uint32_t count) -> Result<void> {
    const kernels::Rows z = model_.workspace(count);
    kernels::Rows states = rows_of(residuals, first, count);
    if (hidden == MtpHidden::post_norm) {
      // eh_proj writes a wave of z only after it has read that wave of states, so both can be one place.
      model_.normalise(states, z);
      states = z;
    }
    TRY(project(next.subspan(first, count), states, z, stop));
    TRY(model_.run_further_layer({.weights = *layer_, .cache = cache_, .recorded = *recorded_}, z, stop));
    TRY(queue_.finish());
    cache_.advance(count);
    last_ = rows_of(z, count - 1, 1);
    if (on_rows) on_rows(first, z);
    return {};
  };
  for (uint32_t first = 0; first < pending_;) {
    const uint32_t count = std::min(model_.max_rows(), pending_ - first);
    if (auto done = run(first, count); !done) {
      cache_.truncate(start);
      return done;
    }
    first += count;
  }
  caught_up_ = pending_;
  pending_ = 0;
  return {};
}

void MtpModule::undo_catch_up() {
  DSPACK_CHECK(pending_ == 0 && caught_up_ <= cache_.length(), "nothing to take back");
  cache_.truncate(cache_.length() - caught_up_);
  pending_ = caught_up_;
  caught_up_ = 0;
}

Result<void> MtpModule::chain(uint32_t token, MtpHidden hidden, const std::stop_token& stop) {
  DSPACK_CHECK(pending_ == 0 && last_.rows == 1, "a chain goes on from an output");
  const kernels::Rows z = model_.workspace(1);
  if (hidden == MtpHidden::post_norm) {
    queue_.rms_norm(last_, own_.output_norm, model_.config().norm_epsilon, z);
    last_ = z;
  }
  TRY(project({&token, 1}, last_, z, stop));
  TRY(model_.run_further_layer({.weights = *layer_, .cache = cache_, .recorded = *recorded_}, z, stop));
  TRY(queue_.finish());
  cache_.advance(1);
  caught_up_ = 0;
  last_ = z;
  return {};
}

void MtpModule::logits(const kernels::Rows& outputs, std::span<float> into) {
  const uint64_t vocab = model_.config().vocab;
  const Linear& head = head_ ? *head_ : model_.head();
  for (uint32_t first = 0; first < outputs.rows; first += kWaveRows) {
    const uint32_t count = std::min(kWaveRows, outputs.rows - first);
    const kernels::Rows final = place(at_.pairs, count, model_.config().hidden);
    queue_.rms_norm(rows_of(outputs, first, count), own_.output_norm, model_.config().norm_epsilon, final);
    model_.logits(final, head, into.subspan(first * vocab, count * vocab));
  }
}

std::optional<uint32_t> MtpModule::likeliest(const kernels::Rows& output) {
  const kernels::Rows final = place(at_.pairs, 1, model_.config().hidden);
  queue_.rms_norm(output, own_.output_norm, model_.config().norm_epsilon, final);
  const auto tokens = model_.likeliest(final, head_ ? *head_ : model_.head());
  return tokens ? std::optional(tokens->front()) : std::nullopt;
}

uint64_t MtpModule::weight_bytes() const {
  return layer_->memory->size_bytes() + own_memory_->size_bytes() +
         (head_memory_ ? head_memory_->size_bytes() : uint64_t{0});
}

}  // namespace dspack::runtime
