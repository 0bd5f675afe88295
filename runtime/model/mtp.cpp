#include "runtime/model/mtp.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "format/weights/find_tensor.h"
#include "runtime/config/config.h"
#include "runtime/weights/equal_tensors.h"

namespace dspack::runtime {

namespace {

// Pairs of embedding and hidden state that are projected at once; V3: 15 MB.
constexpr uint32_t kWaveRows = 256;

uint64_t pair_bytes(const ModelConfig& config) {
  return uint64_t{kWaveRows} * 2 * config.hidden * sizeof(float);
}

// Whether drafts after the first reuse its choice of positions (index_share_for_mtp_iteration; as vLLM reads it,
// #44420).
bool drafts_share(const ModelConfig& config) {
  return config.indexer && config.indexer->drafts_share;
}

std::string name_of(const ModelConfig& config, std::string_view part) {
  return fmt::format("{}.{}", config.names->layer(LayerId(config.layers)), part);
}

}  // namespace

bool MtpModule::is_present(const format::Checkpoint& checkpoint, const ModelConfig& config) {
  return config.mtp_layers > 0 && format::find_tensor(checkpoint, name_of(config, "eh_proj.weight")).has_value();
}

Result<std::unique_ptr<MtpModule>> MtpModule::load(const LoadContext& context, const Model& model,
                                                   const std::stop_token& stop) {
  std::unique_ptr<MtpModule> module(new MtpModule(context, model));
  TRY_ASSIGN(module->pairs_, context.device.allocate(pair_bytes(model.config())));
  const uint64_t before = context.access.bytes_read(WeightPurpose::always_needed);
  TRY(module->load_weights(context, stop));
  TRY(module->share_or_load_head(context, stop));
  TRY(module->choose_embedding(context));
  module->bytes_read_ = context.access.bytes_read(WeightPurpose::always_needed) - before;
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

Result<uint64_t> MtpModule::bytes_for(const LoadContext& context, const ModelConfig& config, uint32_t positions,
                                      const AttentionOptions& attention, uint32_t sequences) {
  const LayerId module(config.layers);
  const auto cache = KvCache::bytes_of(1, positions, kv_shape(config, attention, std::span(&module, 1)).planes);
  if (!cache) return Error{ErrorKind::budget, "the MTP module's KV cache would exceed 2^64 bytes; use less --ctx"};
  LayerWeights layer;
  Own own;
  TRY_ASSIGN(const WeightGroup layer_group, find_layer(context, config, attention, LayerId(config.layers), layer));
  TRY_ASSIGN(const WeightGroup own_group, find_own(context, config, own));
  const format::Checkpoint& checkpoint = context.access.catalogue();
  const format::TensorEntry* head = checkpoint.find(name_of(config, "shared_head.head.weight"));
  const format::TensorEntry* original = checkpoint.find(config.head_name());
  const bool shared = head == nullptr || (original != nullptr && head->digest && head->digest == original->digest);
  const uint64_t state = saturating_add(*cache, MtpState::residual_bytes_for(config.hidden, positions));
  return saturating_add(saturating_mul(state, sequences), layer_group.size_bytes() + own_group.size_bytes() +
                                                              pair_bytes(config) + (shared ? 0 : head->range.size()));
}

Result<void> MtpModule::load_weights(const LoadContext& context, const std::stop_token& stop) {
  const ModelConfig& config = model_.config();
  TRY_ASSIGN(layer_, load_layer(context, config, model_.attention(), LayerId(config.layers), stop));
  TRY_ASSIGN(WeightGroup own, find_own(context, config, own_));
  work_ += layer_->work;
  work_ += own.work();
  weight_bytes_ = work_.bytes;
  TRY_ASSIGN(own_memory_, own.load(WeightPurpose::always_needed, stop));
  return {};
}

Result<void> MtpModule::share_or_load_head(const LoadContext& context, const std::stop_token& stop) {
  const format::Checkpoint& checkpoint = context.access.catalogue();
  const std::string name = name_of(model_.config(), "shared_head.head.weight");
  const format::TensorEntry* copy = checkpoint.find(name);
  const format::TensorEntry* original = checkpoint.find(model_.config().head_name());
  work_ += model_.head_work();
  if (copy == nullptr) return {};
  if (original != nullptr) {
    TRY_ASSIGN(const bool equal, are_equal(context.access, *copy, *original, stop));
    if (equal) return {};
  }
  head_ = std::make_unique<Linear>();
  WeightGroup group(context);
  TRY(group.add_linear(head_.get(), name, model_.config().vocab, model_.config().hidden));
  weight_bytes_ += group.work().bytes;
  TRY_ASSIGN(head_memory_, group.load(WeightPurpose::always_needed, stop));
  return {};
}

// Uses the module's copy unless digests prove it equal: it costs no memory, and is right in any case.
Result<void> MtpModule::choose_embedding(const LoadContext& context) {
  const format::Checkpoint& checkpoint = context.access.catalogue();
  const std::string name = name_of(model_.config(), "embed_tokens.weight");
  const format::TensorEntry* copy = checkpoint.find(name);
  const format::TensorEntry* original = checkpoint.find(kTransformersNames.embedding);
  if (copy == nullptr) return {};
  if (original != nullptr && copy->digest && copy->digest == original->digest) return {};
  TRY_ASSIGN(Embedding embedding, Embedding::make(context, name, model_.config().vocab, model_.config().hidden));
  embedding_.emplace(std::move(embedding));
  return {};
}

kernels::Rows MtpModule::pairs(uint32_t rows, uint32_t cols) const {
  return {.data = {.buffer = pairs_.get(), .offset_bytes = 0}, .rows = rows, .cols = cols, .stride = cols};
}

// z = eh_proj [enorm(embedding of next) ; hnorm(hidden)], a wave of rows at a time.
Result<void> MtpModule::project(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                                const std::stop_token& stop) const {
  const uint32_t width = model_.config().hidden;
  const float epsilon = model_.config().norm_epsilon;
  const Embedding& embedding = embedding_ ? *embedding_ : model_.embedding();
  for (uint32_t first = 0; first < hidden.rows; first += kWaveRows) {
    const uint32_t count = std::min(kWaveRows, hidden.rows - first);
    const kernels::Rows both = pairs(count, 2 * width);
    kernels::Rows left = both;
    left.cols = width;
    kernels::Rows right = left;
    right.data = left.data.at(uint64_t{width} * sizeof(float));
    TRY(embedding.lookup(queue_, next.subspan(first, count), left, stop));
    queue_.rms_norm(left, own_.embedding_norm, epsilon, left);
    queue_.rms_norm(rows_of(hidden, first, count), own_.hidden_norm, epsilon, right);
    own_.projection.apply(queue_, both, rows_of(z, first, count));
  }
  return {};
}

Result<kernels::Rows> MtpModule::catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                          MtpHidden hidden, const std::stop_token& stop,
                                          const RowsCallback& on_rows) const {
  DSPACK_CHECK(sequence.mtp() != nullptr, "a sequence that keeps nothing for the module");
  MtpState& state = *sequence.mtp();
  const uint32_t pending = state.pending();
  DSPACK_CHECK(pending > 0 && next.size() == pending, "one token must follow each pending position");
  const uint32_t start = state.cache_.length();
  kernels::Rows last;
  const auto run = [&](uint32_t first, uint32_t count) -> Result<void> {
    const kernels::Rows z = model_.residual_rows(scratch, count);
    kernels::Rows states = state.residuals(first, count);
    if (hidden == MtpHidden::post_norm) {
      // eh_proj writes a wave of z only after reading that wave of states, so both can share memory.
      model_.normalise(states, z);
      states = z;
    }
    TRY(project(next.subspan(first, count), states, z, stop));
    const ChoiceUse choice = drafts_share(model_.config()) ? ChoiceUse::kept : ChoiceUse::as_needed;
    TRY(model_.run_further_layer(
        {.weights = *layer_, .cache = state.cache_, .recorded = state.recorded_, .choice = choice}, z, scratch, stop));
    if (choice == ChoiceUse::kept) layer_->attention->pass_on(queue_, model_.attention_scratch(scratch), count - 1);
    TRY(queue_.finish());
    state.cache_.advance(count);
    last = rows_of(z, count - 1, 1);
    if (on_rows) on_rows(first, z);
    return {};
  };
  for (uint32_t first = 0; first < pending;) {
    const uint32_t count = std::min(model_.max_rows(), pending - first);
    if (auto done = run(first, count); !done) {
      state.cache_.truncate(start);
      return done.error();
    }
    first += count;
  }
  state.pending_ = 0;
  return last;
}

Result<kernels::Rows> MtpModule::chain(Sequence& sequence, Scratch& scratch, const kernels::Rows& last, uint32_t token,
                                       MtpHidden hidden, const std::stop_token& stop) const {
  DSPACK_CHECK(sequence.mtp() != nullptr && sequence.mtp()->pending() == 0 && last.rows == 1,
               "a chain continues from an output");
  MtpState& state = *sequence.mtp();
  const kernels::Rows z = model_.residual_rows(scratch, 1);
  kernels::Rows from = last;
  if (hidden == MtpHidden::post_norm) {
    queue_.rms_norm(last, own_.output_norm, model_.config().norm_epsilon, z);
    from = z;
  }
  TRY(project({&token, 1}, from, z, stop));
  const ChoiceUse choice = drafts_share(model_.config()) ? ChoiceUse::taken : ChoiceUse::as_needed;
  TRY(model_.run_further_layer(
      {.weights = *layer_, .cache = state.cache_, .recorded = state.recorded_, .choice = choice}, z, scratch, stop));
  TRY(queue_.finish());
  state.cache_.advance(1);
  return z;
}

void MtpModule::logits(const kernels::Rows& outputs, Scratch& scratch, std::span<float> into) const {
  const uint64_t vocab = model_.config().vocab;
  for (uint32_t first = 0; first < outputs.rows; first += kWaveRows) {
    const uint32_t count = std::min(kWaveRows, outputs.rows - first);
    const kernels::Rows final = pairs(count, model_.config().hidden);
    queue_.rms_norm(rows_of(outputs, first, count), own_.output_norm, model_.config().norm_epsilon, final);
    model_.logits(final, head(), scratch, into.subspan(first * vocab, count * vocab));
  }
}

kernels::Rows MtpModule::normalised(const kernels::Rows& output) const {
  const kernels::Rows final = pairs(1, model_.config().hidden);
  queue_.rms_norm(output, own_.output_norm, model_.config().norm_epsilon, final);
  return final;
}

}  // namespace dspack::runtime
