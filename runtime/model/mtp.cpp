#include "runtime/model/mtp.h"

#include <algorithm>

#include "runtime/config/config.h"
#include "runtime/weights/equal_tensors.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

namespace {

// Rows whose input is made at once; V3: 15 MB, V4-Flash: 25 MB.
constexpr uint32_t kWaveRows = 256;

// Values of a row while its input is made: a normalised embedding and hidden state; with streams, also the projected
// embedding.
uint64_t wave_bytes(const ModelConfig& config) {
  const uint64_t values = config.hidden + uint64_t{Residual::width(config)} + (config.streams ? config.hidden : 0);
  return kWaveRows * values * sizeof(float);
}

// Whether drafts after the first reuse its choice of positions (index_share_for_mtp_iteration; as vLLM reads it,
// #44420).
bool drafts_share(const ModelConfig& config) {
  return config.indexer && config.indexer->drafts_share;
}

}  // namespace

Result<WeightGroup> MtpModule::find_own(const LoadContext& context, const ModelConfig& config, Own& own) {
  WeightGroup group(context);
  TRY(group.add_vector(&own.embedding_norm, name_of(config, "enorm.weight"), config.hidden));
  TRY(group.add_vector(&own.hidden_norm, name_of(config, "hnorm.weight"), config.hidden));
  if (!config.streams) {
    TRY(group.add_vector(&own.output_norm, name_of(config, "shared_head.norm.weight"), config.hidden));
    TRY(group.add_linear(&own.projection, name_of(config, "eh_proj.weight"), config.hidden, 2 * config.hidden));
    return group;
  }
  TRY(group.add_vector(&own.output_norm, name_of(config, "norm.weight"), config.hidden));
  TRY(group.add_linear(&own.of_embedding, name_of(config, "e_proj.weight"), config.hidden, config.hidden));
  TRY(group.add_linear(&own.of_hidden, name_of(config, "h_proj.weight"), config.hidden, config.hidden));
  TRY(Residual::add_weights(group, config, own.end_mix, name_of(config, "hc_head"), Residual::Mixture::at_end));
  return group;
}

Result<uint64_t> MtpModule::own_bytes(const LoadContext& context, const ModelConfig& config) {
  Own own;
  TRY_ASSIGN(const WeightGroup group, find_own(context, config, own));
  const format::Checkpoint& checkpoint = context.access.catalogue();
  const format::TensorEntry* head = checkpoint.find(name_of(config, "shared_head.head.weight"));
  const format::TensorEntry* original = checkpoint.find(config.head_name());
  const bool shared = head == nullptr || (original != nullptr && head->digest && head->digest == original->digest);
  return group.size_bytes() + wave_bytes(config) + (shared ? 0 : head->range.size());
}

Result<void> MtpModule::load_all(const LoadContext& context, const std::stop_token& stop) {
  TRY_ASSIGN(wave_, context.device.allocate(wave_bytes(model_.config())));
  TRY(load_layers(context, stop));
  TRY_ASSIGN(WeightGroup own, find_own(context, model_.config(), own_));
  work_ += own.work();
  weight_bytes_ = work_.bytes;
  TRY_ASSIGN(own_memory_, own.load(WeightPurpose::always_needed, stop));
  TRY(share_or_load_head(context, stop));
  return choose_embedding(context);
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

kernels::Rows MtpModule::wave(uint32_t rows, uint32_t cols, uint32_t at) const {
  return dense_rows({.buffer = wave_.get(), .offset_bytes = uint64_t{kWaveRows} * at * sizeof(float)}, rows, cols);
}

Result<void> MtpModule::embed(std::span<const uint32_t> tokens, const kernels::Rows& into,
                              const std::stop_token& stop) const {
  TRY((embedding_ ? *embedding_ : model_.embedding()).lookup(queue_, tokens, into, stop));
  queue_.rms_norm(into, own_.embedding_norm, model_.config().norm_epsilon, into);
  return {};
}

// z = eh_proj [enorm(embedding of next) ; hnorm(hidden)].
Result<void> MtpModule::project_pairs(std::span<const uint32_t> next, const kernels::Rows& hidden,
                                      const kernels::Rows& z, const std::stop_token& stop) const {
  const uint32_t width = model_.config().hidden;
  const kernels::Rows both = wave(hidden.rows, 2 * width);
  kernels::Rows left = both;
  left.cols = width;
  kernels::Rows right = left;
  right.data = left.data.at(uint64_t{width} * sizeof(float));
  TRY(embed(next, left, stop));
  queue_.rms_norm(hidden, own_.hidden_norm, model_.config().norm_epsilon, right);
  own_.projection.apply(queue_, both, z);
  return {};
}

// z_j = e_proj enorm(embedding of next) + h_proj hnorm(stream j of hidden).
Result<void> MtpModule::project_streams(std::span<const uint32_t> next, const kernels::Rows& hidden,
                                        const kernels::Rows& z, const std::stop_token& stop) const {
  const uint32_t width = model_.config().hidden, streams = model_.config().streams->count;
  const uint32_t vectors = hidden.rows * streams;
  const kernels::Rows embedded = wave(hidden.rows, width), projected = wave(hidden.rows, width, width);
  const kernels::Rows normalised = wave(vectors, width, 2 * width);
  TRY(embed(next, embedded, stop));
  own_.of_embedding.apply(queue_, embedded, projected);
  queue_.rms_norm(dense_rows(hidden.data, vectors, width), own_.hidden_norm, model_.config().norm_epsilon, normalised);
  own_.of_hidden.apply(queue_, normalised, dense_rows(z.data, vectors, width));
  for (uint32_t stream = 0; stream < streams; ++stream) {
    kernels::Rows sum = z;
    sum.cols = width;
    sum.data = z.data.at(uint64_t{stream} * width * sizeof(float));
    queue_.add(sum, projected);
  }
  return {};
}

Result<void> MtpModule::project(std::span<const uint32_t> next, const kernels::Rows& hidden, const kernels::Rows& z,
                                const std::stop_token& stop) const {
  for (uint32_t first = 0; first < hidden.rows; first += kWaveRows) {
    const uint32_t count = std::min(kWaveRows, hidden.rows - first);
    const auto tokens = next.subspan(first, count);
    const kernels::Rows from = rows_of(hidden, first, count), to = rows_of(z, first, count);
    if (model_.config().streams) {
      TRY(project_streams(tokens, from, to, stop));
    } else {
      TRY(project_pairs(tokens, from, to, stop));
    }
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
  DSPACK_CHECK((hidden == MtpHidden::streams) == model_.config().streams.has_value(), "another model's hidden state");
  kernels::Rows last;
  const auto run = [&](uint32_t first, kernels::Rows states) -> Result<void> {
    const uint32_t count = states.rows;
    const kernels::Rows z = model_.residual_rows(scratch, count);
    if (hidden == MtpHidden::post_norm) {
      // eh_proj writes a wave of z only after reading that wave of states, so both can share memory.
      model_.normalise(states, z);
      states = z;
    }
    TRY(project(next.subspan(first, count), states, z, stop));
    const ChoiceUse choice = drafts_share(model_.config()) ? ChoiceUse::kept : ChoiceUse::as_needed;
    TRY(model_.run_further_layers(
        {.weights = layers_, .cache = state.cache_, .recorded = state.recorded_, .choice = choice}, z, scratch, stop));
    if (choice == ChoiceUse::kept)
      layers_.front()->attention->pass_on(queue_, model_.attention_scratch(scratch), count - 1);
    TRY(queue_.finish());
    state.cache_.advance(count);
    last = rows_of(z, count - 1, 1);
    if (on_rows) on_rows(first, z);
    return {};
  };
  // No more rows at once than the window's ring has room for without what the next attempt would need.
  const uint32_t most = model_.config().window ? std::min(model_.max_rows(), CachePlane::kRewind) : model_.max_rows();
  while (state.pending() > 0) {
    const kernels::Rows states = state.residuals(state.length(), std::min(most, state.pending()));
    if (auto done = run(pending - state.pending(), states); !done) {
      state.give_up(states.rows);
      return done.error();
    }
    state.pending_ -= states.rows;
  }
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
  if (auto done = model_.run_further_layers(
          {.weights = layers_, .cache = state.cache_, .recorded = state.recorded_, .choice = choice}, z, scratch, stop);
      !done) {
    state.give_up(1);
    return done.error();
  }
  TRY(queue_.finish());
  state.cache_.advance(1);
  return z;
}

Result<std::vector<uint32_t>> MtpModule::draft(const Request& request) const {
  std::vector<uint32_t> drafts;
  kernels::Rows output = request.begin;
  while (drafts.size() < request.count) {
    if (!drafts.empty()) {
      TRY_ASSIGN(output, chain(request.sequence, request.scratch, output, drafts.back(), request.hidden, request.stop));
    }
    model_.score(normalised(output, request.scratch), head(), request.scratch);
    TRY_ASSIGN(const uint32_t token, request.choose(model_.score_rows(request.scratch, 1)));
    drafts.push_back(token);
  }
  return drafts;
}

void MtpModule::logits(const kernels::Rows& outputs, Scratch& scratch, std::span<float> into) const {
  const uint64_t vocab = model_.config().vocab;
  const uint32_t most = std::min(kWaveRows, model_.max_rows());
  for (uint32_t first = 0; first < outputs.rows; first += most) {
    const uint32_t count = std::min(most, outputs.rows - first);
    model_.logits(normalised(rows_of(outputs, first, count), scratch), head(), scratch,
                  into.subspan(first * vocab, count * vocab));
  }
}

kernels::Rows MtpModule::normalised(const kernels::Rows& outputs, const Scratch& scratch) const {
  const kernels::Rows final = wave(outputs.rows, model_.config().hidden);
  const kernels::Rows ended = model_.end_of(outputs, own_.end_mix, scratch, final);
  queue_.rms_norm(ended, own_.output_norm, model_.config().norm_epsilon, final);
  return final;
}

}  // namespace dspack::runtime
