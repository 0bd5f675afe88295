#include "runtime/generate/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "format/base/seconds.h"
namespace dspack::runtime {

namespace {

using Clock = std::chrono::steady_clock;

// Rows of logits in memory at once; 64 of V3 are 33 MB.
constexpr uint32_t kLogitRows = 64;

// A part of the session's time, from when this is made.
class Lap {
 public:
  explicit Lap(StageClock* stages) : stages_(stages), start_(Clock::now()) {
    if (stages_ != nullptr) before_ = stages_->seconds();
  }
  void end(double& seconds, StageSeconds& by_stage) const {
    if (stages_ == nullptr) {
      seconds += seconds_since(start_);
      return;
    }
    const StageSeconds& now = stages_->seconds();  // of one reading, so that stages add up to the whole
    for (size_t stage = 0; stage < kStages; ++stage) {
      by_stage[stage] += now[stage] - before_[stage];
      seconds += now[stage] - before_[stage];
    }
  }

 private:
  StageClock* stages_;
  Clock::time_point start_;
  StageSeconds before_{};
};

}  // namespace

Result<void> check_prompt(std::span<const uint32_t> prompt, const ModelConfig& config, uint32_t positions) {
  if (prompt.empty()) return Error{ErrorKind::invalid, "the prompt holds no token"};
  for (const uint32_t token : prompt) {
    if (token >= config.vocab) {
      return Error{
          ErrorKind::invalid,
          fmt::format("token {} is outside the vocabulary of {} (vocab_size in config.json)", token, config.vocab)};
    }
  }
  if (prompt.size() <= positions) return {};
  return Error{ErrorKind::invalid,
               fmt::format("the prompt has {} tokens, but the context holds {}; shorten it or allow "
                           "more with --ctx (this model: up to {})",
                           prompt.size(), positions, config.longest_context())};
}

Session::Session(const Engine& engine, Sequence sequence, const std::optional<SpeculationOptions>& speculation)
    : engine_(engine), sequence_(std::move(sequence)) {
  if (speculation) speculator_.emplace(engine, *speculation);
}

Result<HiddenStates> Session::append(std::span<const uint32_t> tokens, Phase phase, const std::stop_token& stop,
                                     const PassOptions& options) {
  const auto rows = static_cast<uint32_t>(tokens.size());
  engine_.model.experts().begin_pass(
      {.phase = phase, .rows = rows, .draft_rows = phase == Phase::decode ? rows - 1 : 0});
  return engine_.model.forward({.sequence = sequence_, .tokens = tokens}, engine_.scratch, stop, options);
}

// Tokens of the prompt that the sequence holds. At least the last token is computed, or there would be nothing to
// continue from.
size_t Session::common_length(std::span<const uint32_t> prompt) const {
  const std::span<const uint32_t> held = sequence_.tokens();
  const auto [mine, theirs] = std::ranges::mismatch(held, prompt);
  return std::min<size_t>(static_cast<size_t>(mine - held.begin()), prompt.size() - 1);
}

// Hidden states of the last chunk.
Result<HiddenStates> Session::prefill(std::span<const uint32_t> prompt, const std::stop_token& stop) {
  const auto start = Clock::now();
  const size_t common = common_length(prompt);
  sequence_.truncate(static_cast<uint32_t>(common));
  HiddenStates hidden;
  for (size_t done = common; done < prompt.size();) {
    const size_t count = std::min<size_t>(engine_.model.max_rows(), prompt.size() - done);
    PassEnd* end = engine_.picker.end_of_pass(static_cast<uint32_t>(count));
    TRY_ASSIGN(hidden, append(prompt.subspan(done, count), Phase::prefill, stop, {.trace = nullptr, .end = end}));
    done += count;
  }
  times_.prefill_tokens += prompt.size() - common;
  if (speculator_) speculator_->prefilled(prompt.size() - common, seconds_since(start));
  return hidden;
}

Result<std::vector<uint32_t>> Session::verify(const kernels::Rows& final, std::span<const uint32_t> tokens,
                                              Sampler& sampler) {
  if (sampler.takes_highest()) {
    if (const auto likeliest = engine_.picker.likeliest(final)) return speculator_->verify(*likeliest);
  }
  logits_.resize(uint64_t{final.rows} * vocab());
  engine_.picker.logits(final, logits_);
  return speculator_->verify(tokens, logits_, sampler);
}

// The answer's first token.
Result<std::vector<uint32_t>> Session::begin(const HiddenStates& hidden, Sampler& sampler) {
  const auto token = engine_.picker.pick(rows_of(hidden.final, hidden.final.rows - 1, 1), sequence_.tokens(), sampler);
  TRY(engine_.model.check_device());
  if (!token) return token.error();
  return std::vector<uint32_t>{*token};
}

// One pass over the last of `tokens`, which the sequence does not hold yet, and over what may follow it (at most
// `most_drafts`). Returns what follows for certain; the sequence then holds all but the last of it.
Result<std::vector<uint32_t>> Session::step(std::span<const uint32_t> tokens, uint32_t most_drafts, Sampler& sampler,
                                            const std::stop_token& stop) {
  std::vector<uint32_t> run = {tokens.back()};
  if (speculator_) {
    TRY_ASSIGN(const auto drafts, speculator_->propose(sequence_, tokens, most_drafts, sampler, stop));
    run.insert(run.end(), drafts.begin(), drafts.end());
  }
  PassEnd* end =
      speculator_ ? engine_.picker.end_of_pass(static_cast<uint32_t>(run.size())) : engine_.picker.end_of_pass(sampler);
  TRY_ASSIGN(const HiddenStates hidden, append(run, Phase::decode, stop, {.trace = nullptr, .end = end}));
  std::vector<uint32_t> certain;
  if (speculator_) {
    auto verified = verify(hidden.final, tokens, sampler);
    TRY(engine_.model.check_device());
    TRY_ASSIGN(certain, std::move(verified));
    engine_.model.experts().accept_drafts(static_cast<uint32_t>(certain.size()) - 1);
    sequence_.truncate(static_cast<uint32_t>(tokens.size() + certain.size() - 1));
  } else {
    const auto token = engine_.picker.pick(hidden.final, tokens, sampler);
    TRY(engine_.model.check_device());
    if (!token) return token.error();
    certain.push_back(*token);
  }
  ++times_.decode_passes;
  return certain;
}

// Hands over one token after the other, each as if it had come alone. Nullopt: the answer continues.
std::optional<StopReason> Session::deliver(std::span<const uint32_t> certain, const GenerateOptions& options,
                                           const TokenCallback& on_token, const std::stop_token& stop,
                                           Answer& answer) const {
  for (const uint32_t& token : certain) {
    if (&token != certain.data() && stop.stop_requested()) return StopReason::interrupted;
    if (std::ranges::find(options.end_tokens, token) != options.end_tokens.end()) return StopReason::end_token;
    answer.tokens.push_back(token);
    if (!on_token(token)) return StopReason::stopped;
    if (answer.tokens.size() >= options.max_tokens) return StopReason::max_tokens;
  }
  if (sequence_.length() == sequence_.capacity()) return StopReason::context_full;
  return std::nullopt;
}

Result<Answer> Session::generate(std::span<const uint32_t> prompt, const GenerateOptions& options, Sampler& sampler,
                                 const TokenCallback& on_token, const std::stop_token& stop) {
  TRY(check_prompt(prompt, engine_.model.config(), sequence_.capacity()));
  TRY(sampler.check_vocab(vocab()));
  Answer answer;
  if (options.max_tokens == 0) return answer;
  if (options.before_prefill) TRY(options.before_prefill(prompt.size() - common_length(prompt)));
  const Lap until_first(engine_.scratch.stages());
  const auto hidden = prefill(prompt, stop);
  auto certain = hidden ? begin(*hidden, sampler) : Result<std::vector<uint32_t>>(hidden.error());
  until_first.end(times_.prefill_seconds, times_.prefill_stages);
  const Lap after_first(engine_.scratch.stages());
  std::vector<uint32_t> tokens(prompt.begin(), prompt.end());
  while (certain) {
    if (const auto end = deliver(*certain, options, on_token, stop, answer)) {
      answer.reason = *end;
      break;
    }
    tokens.insert(tokens.end(), certain->begin(), certain->end());
    const uint64_t wanted = options.max_tokens - answer.tokens.size();
    const uint32_t room = std::min(sequence_.capacity() - sequence_.length(), engine_.model.max_rows());
    certain = step(tokens, static_cast<uint32_t>(std::min<uint64_t>(wanted, room) - 1), sampler, stop);
  }
  after_first.end(times_.decode_seconds, times_.decode_stages);
  if (!certain && certain.error().kind != ErrorKind::cancelled) return certain.error();
  if (!certain) answer.reason = StopReason::interrupted;
  const size_t sampled = answer.tokens.size() + (answer.reason == StopReason::end_token ? 1 : 0);
  if (sampled > 0) times_.decode_tokens += sampled - 1;  // the first one came of the prompt's pass
  // Drafts that were accepted, but lie after the end.
  const size_t spoken = prompt.size() + answer.tokens.size();
  if (sequence_.length() > spoken) sequence_.truncate(static_cast<uint32_t>(spoken));
  return answer;
}

Result<void> Session::logits(std::span<const uint32_t> prompt, uint32_t chunk, const LogitsCallback& on_rows,
                             const std::stop_token& stop, Trace* trace) {
  TRY(check_prompt(prompt, engine_.model.config(), sequence_.capacity()));
  clear();
  const uint32_t max_rows = engine_.model.max_rows();
  const size_t most = chunk == 0 ? max_rows : std::min(chunk, max_rows);
  for (size_t done = 0; done < prompt.size();) {
    const Lap lap(engine_.scratch.stages());
    const size_t count = std::min(most, prompt.size() - done);
    PassEnd* end = trace == nullptr ? engine_.picker.end_of_pass(static_cast<uint32_t>(count)) : nullptr;
    TRY_ASSIGN(const HiddenStates hidden,
               append(prompt.subspan(done, count), count == 1 ? Phase::decode : Phase::prefill, stop,
                      {.trace = trace, .end = end}));
    std::vector<float> rows;
    for (uint32_t first = 0; first < count; first += kLogitRows) {
      const auto part = std::min<uint32_t>(kLogitRows, static_cast<uint32_t>(count) - first);
      rows.resize(size_t{part} * vocab());
      engine_.picker.logits(rows_of(hidden.final, first, part), rows, trace);
      TRY(engine_.model.check_device());
      on_rows(rows);
    }
    done += count;
    times_.prefill_tokens += count;
    lap.end(times_.prefill_seconds, times_.prefill_stages);
  }
  return {};
}

}  // namespace dspack::runtime
