#include "runtime/model/dspark.h"

#include <algorithm>
#include <cmath>

#include "runtime/weights/scratch.h"

namespace dspack::runtime {

namespace {

// Positions that are read at once: as many as the window's ring has room for without what the next attempt would need.
constexpr uint32_t kMostRead = CachePlane::kRewind;

}  // namespace

DsparkModule::Places DsparkModule::lay_out(const ModelConfig& config) {
  const DsparkConfig& dspark = *config.dspark;
  Places places;
  places.main = places.plan.add(uint64_t{std::max(kMostRead, dspark.block)} * config.hidden);
  places.normalised = places.plan.add(uint64_t{dspark.block} * config.hidden);
  places.joined = places.plan.add(uint64_t{config.hidden} + dspark.markov_rank);
  places.bias = places.plan.add(config.vocab);
  places.confidence = places.plan.add(1);
  return places;
}

Result<WeightGroup> DsparkModule::find_own(const LoadContext& context, const ModelConfig& config, Own& own) {
  const DsparkConfig& dspark = *config.dspark;
  const uint32_t last = config.mtp_layers - 1;
  WeightGroup group(context);
  TRY(group.add_linear(&own.main, name_of(config, "main_proj.weight"), config.hidden, MtpState::width(config)));
  TRY(group.add_vector(&own.main_norm, name_of(config, "main_norm.weight"), config.hidden));
  TRY(group.add_vector(&own.norm, name_of(config, "norm.weight", last), config.hidden));
  TRY(Residual::add_weights(group, config, own.end_mix, name_of(config, "hc_head", last), Residual::Mixture::at_end));
  TRY(group.add_linear(&own.markov, name_of(config, "markov_head.markov_w2.weight", last), config.vocab,
                       dspark.markov_rank));
  TRY(group.add_linear(&own.confidence, name_of(config, "confidence_head.proj.weight", last), 1,
                       config.hidden + dspark.markov_rank));
  return group;
}

Result<Embedding> DsparkModule::find_markov_rows(const LoadContext& context, const ModelConfig& config) {
  return Embedding::make(context, name_of(config, "markov_head.markov_w1.weight", config.mtp_layers - 1), config.vocab,
                         config.dspark->markov_rank);
}

Result<uint64_t> DsparkModule::own_bytes(const LoadContext& context, const ModelConfig& config) {
  Own own;
  TRY_ASSIGN(const WeightGroup group, find_own(context, config, own));
  return group.size_bytes() + lay_out(config).plan.size_bytes();
}

Result<void> DsparkModule::load_all(const LoadContext& context, const std::stop_token& stop) {
  TRY_ASSIGN(memory_, context.device.allocate(at_.plan.size_bytes()));
  TRY(load_layers(context, stop));
  TRY_ASSIGN(WeightGroup own, find_own(context, model_.config(), own_));
  work_ += own.work();
  weight_bytes_ = work_.bytes;
  work_ += model_.head_work();
  TRY_ASSIGN(own_memory_, own.load(WeightPurpose::always_needed, stop));
  TRY_ASSIGN(Embedding rows, find_markov_rows(context, model_.config()));
  markov_rows_.emplace(std::move(rows));
  return {};
}

kernels::Rows DsparkModule::rows_at(uint64_t place, uint32_t rows, uint32_t cols) const {
  return dense_rows({.buffer = memory_.get(), .offset_bytes = place}, rows, cols);
}

Model::FurtherLayers DsparkModule::stages(MtpState& state, bool is_block) const {
  return {.weights = layers_, .cache = state.cache_, .recorded = state.recorded_, .is_block = is_block};
}

Result<kernels::Rows> DsparkModule::catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                             MtpHidden hidden, const std::stop_token& stop) const {
  DSPACK_CHECK(sequence.mtp() != nullptr, "a sequence that keeps nothing for the module");
  MtpState& state = *sequence.mtp();
  DSPACK_CHECK(state.pending() > 0 && next.size() == state.pending(), "one token must follow each pending position");
  DSPACK_CHECK(hidden == MtpHidden::stream_means, "another model's hidden state");
  const uint32_t most = std::min(kMostRead, model_.attention().wave_rows);
  while (state.pending() > 0) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    const kernels::Rows means = state.residuals(state.length(), std::min(most, state.pending()));
    const kernels::Rows main = rows_at(at_.main, means.rows, model_.config().hidden);
    own_.main.apply(queue_, means, main);
    queue_.rms_norm(main, own_.main_norm, model_.config().norm_epsilon, main);
    model_.remember(stages(state, false), main, scratch);
    if (auto done = queue_.finish(); !done) {
      state.give_up(means.rows);
      return done.error();
    }
    state.cache_.advance(means.rows);
    state.pending_ -= means.rows;
  }
  return kernels::Rows{};
}

Result<kernels::Rows> DsparkModule::run_block(const Request& request, uint32_t rows) const {
  const ModelConfig& config = model_.config();
  MtpState& state = *request.sequence.mtp();
  std::vector<uint32_t> tokens(rows, config.dspark->noise_token);
  tokens.front() = request.last;
  const kernels::Rows stream = model_.residual_rows(request.scratch, rows);
  kernels::Rows embedded = stream;
  embedded.cols = config.hidden;
  TRY(model_.embedding().lookup(queue_, tokens, embedded, request.stop));
  model_.begin_stream(stream);
  if (auto done = model_.run_further_layers(stages(state, true), stream, request.scratch, request.stop); !done) {
    state.give_up(rows);
    return done.error();
  }
  TRY(queue_.finish());
  // The block's own keys are no part of the past.
  state.cache_.advance(rows);
  state.truncate(state.length() - rows);
  return model_.end_of(stream, own_.end_mix, request.scratch, rows_at(at_.main, rows, config.hidden));
}

double DsparkModule::chance() const {
  const kernels::Rows logit = rows_at(at_.confidence, 1, 1);
  own_.confidence.apply(queue_, rows_at(at_.joined, 1, own_.confidence.weight().in), logit);
  float value = 0;
  queue_.download(std::as_writable_bytes(std::span(&value, 1)), logit.data);
  queue_.synchronize();
  return 1 / (1 + std::exp(-double{value}));
}

Result<std::vector<uint32_t>> DsparkModule::draft(const Request& request) const {
  DSPACK_CHECK(request.sequence.mtp() != nullptr && request.sequence.mtp()->pending() == 0 && request.count > 0,
               "a block follows positions that were read");
  const ModelConfig& config = model_.config();
  const KvCache& cache = request.sequence.mtp()->cache_;
  // Where there is no room for a whole block, drafts are made from a shorter one.
  const uint32_t rows = std::min(
      {config.dspark->block, cache.capacity() - cache.length(), model_.max_rows(), model_.attention().wave_rows});
  if (rows == 0) return std::vector<uint32_t>();
  TRY_ASSIGN(const kernels::Rows mixtures, run_block(request, rows));
  const uint32_t count = std::min({request.count, rows, drafts_at_once()});
  const kernels::Rows normalised = rows_at(at_.normalised, count, config.hidden);
  queue_.rms_norm(rows_of(mixtures, 0, count), own_.norm, config.norm_epsilon, normalised);
  model_.score(normalised, model_.head(), request.scratch);
  const kernels::Rows scores = model_.score_rows(request.scratch, count);

  const kernels::Rows joined = rows_at(at_.joined, 1, config.hidden + config.dspark->markov_rank);
  kernels::Rows before = joined;  // the Markov head's row of the token before
  before.cols = config.dspark->markov_rank;
  before.data = joined.data.at(uint64_t{config.hidden} * sizeof(float));
  const kernels::Rows bias = rows_at(at_.bias, 1, config.vocab);
  std::vector<uint32_t> drafts;
  double all_accepted = 1;
  while (drafts.size() < count) {
    const auto row = static_cast<uint32_t>(drafts.size());
    const uint32_t previous = drafts.empty() ? request.last : drafts.back();
    TRY(markov_rows_->lookup(queue_, std::span(&previous, 1), before, request.stop));
    if (request.least_chance > 0) {
      queue_.copy(joined.data, rows_of(mixtures, row, 1).data, uint64_t{config.hidden} * sizeof(float));
      all_accepted *= chance();
      if (row > 0 && all_accepted < request.least_chance) break;
    }
    own_.markov.apply(queue_, before, bias);
    queue_.add(rows_of(scores, row, 1), bias);
    TRY_ASSIGN(const uint32_t token, request.choose(rows_of(scores, row, 1)));
    drafts.push_back(token);
  }
  return drafts;
}

}  // namespace dspack::runtime
