#include "runtime/generate/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "format/base/seconds.h"
#include "runtime/weights/host_rows.h"
#include "runtime/weights/trace.h"

namespace dspack::runtime {
namespace {

/// Finds the first module of a pass that computes infinity or NaN: used if a pass's logits cannot be chosen from, to
/// name the module whose weights may be damaged. Borrows the queue. Errors: `status` is corrupt once something was
/// found, which ends the pass.
class NumberWatch final : public Trace {
 public:
  explicit NumberWatch(kernels::Queue& queue) : queue_(queue) {}

  [[nodiscard]] uint32_t tokens() const override { return 0; }  // each call's rows are checked at once
  void input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void routing(std::string_view /*module*/, const Routing& /*routing*/) override {}
  [[nodiscard]] Result<void> status() const override;

  /// For people: the first such module, and whether it computed or received the value; nullopt: all values were finite.
  [[nodiscard]] const std::optional<std::string>& finding() const { return finding_; }

 private:
  [[nodiscard]] bool are_finite(const kernels::Rows& rows) const;

  kernels::Queue& queue_;
  std::optional<std::string> finding_;
};

bool NumberWatch::are_finite(const kernels::Rows& rows) const {
  return std::ranges::all_of(download_rows(queue_, rows), [](float value) { return std::isfinite(value); });
}

void NumberWatch::input(std::string_view module, const kernels::Rows& rows, uint32_t /*total_rows*/) {
  if (finding_ || are_finite(rows)) return;
  finding_ = fmt::format(
      "what {} reads is the first that is infinite or not a number: it was computed from finite values, or read from "
      "the KV cache",
      module);
}

void NumberWatch::output(std::string_view module, const kernels::Rows& rows, uint32_t /*total_rows*/) {
  if (finding_ || are_finite(rows)) return;
  finding_ = fmt::format(
      "{} is the first module that makes what is infinite or not a number, of finite values: its weights or their "
      "scales are damaged (reshard verify compares a packed model's bytes; fetch the file again)",
      module);
}

Result<void> NumberWatch::status() const {
  if (!finding_) return {};
  return Error{ErrorKind::corrupt, *finding_};
}

using Clock = std::chrono::steady_clock;

// Measures a part of the session's time, from its construction.
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
    const StageSeconds& now = stages_->seconds();  // read once, so that stages add up to the total
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

Result<void> Session::advance(Continuation& answer, const std::stop_token& stop) {
  TRY_ASSIGN(const auto rows, answer.next(engine_.model.max_rows(), /*may_draft=*/true, stop));
  const auto start = Clock::now();
  const Phase phase = answer.is_reading() ? Phase::prefill : Phase::decode;
  TRY_ASSIGN(const HiddenStates hidden, append(rows, phase, stop, {.trace = nullptr, .end = answer.end_of_pass()}));
  answer.passed(seconds_since(start));
  if (!answer.needs_choice()) return {};
  const uint32_t scored = answer.scored_rows();
  const auto chosen = answer.choose(rows_of(hidden.final, hidden.final.rows - scored, scored));
  if (!chosen) return chosen.error().kind == ErrorKind::corrupt ? explained(chosen.error(), stop) : chosen.error();
  if (speculator_ && phase == Phase::decode) engine_.model.experts().accept_drafts(answer.accepted_drafts());
  return {};
}

// Runs the sequence's tokens again, to name the first module that computed a value that is not finite.
Error Session::explained(const Error& unusable, const std::stop_token& stop) {
  NumberWatch watch(engine_.model.queue());
  const std::vector<uint32_t> tokens(sequence_.tokens().begin(), sequence_.tokens().end());
  const auto done = logits(
      tokens, 0, [](std::span<const float>) {}, stop, &watch);
  if (!done && !watch.finding()) return done.error();
  return {unusable.kind,
          fmt::format("the model's {}; {}", unusable.message, watch.finding().value_or("no module alone makes it so"))};
}

Result<Answer> Session::generate(std::span<const uint32_t> prompt, const GenerateOptions& options, Sampler& sampler,
                                 const TokenCallback& on_token, const std::stop_token& stop) {
  TRY(check_prompt(prompt, engine_.model.config(), sequence_.capacity()));
  TRY(sampler.check_vocab(vocab()));
  if (options.max_tokens == 0) return Answer{};
  const uint64_t computed = prompt.size() - kept_tokens(sequence_.tokens(), prompt);
  if (options.before_prefill) TRY(options.before_prefill(computed));
  Continuation answer(engine_, sequence_, speculator_ ? &*speculator_ : nullptr, {prompt.begin(), prompt.end()},
                      {.max_tokens = options.max_tokens, .end_tokens = options.end_tokens}, sampler);
  const Lap until_first(engine_.scratch.stages());
  Result<void> outcome;
  while (outcome && answer.is_reading())
    outcome = advance(answer, stop);
  if (outcome) times_.prefill_tokens += computed;
  until_first.end(times_.prefill_seconds, times_.prefill_stages);
  const Lap after_first(engine_.scratch.stages());
  StopReason reason = StopReason::interrupted;
  while (outcome) {
    const auto end = answer.deliver([&](uint32_t token, uint32_t /*row*/) { return on_token(token); }, stop);
    if (end) {
      reason = *end;
      break;
    }
    outcome = advance(answer, stop);
    if (outcome) ++times_.decode_passes;
  }
  after_first.end(times_.decode_seconds, times_.decode_stages);
  if (!outcome && outcome.error().kind != ErrorKind::cancelled) return outcome.error();
  const size_t sampled = answer.answer().size() + (reason == StopReason::end_token ? 1 : 0);
  if (sampled > 0) times_.decode_tokens += sampled - 1;  // the first token came from the prompt's pass
  answer.finish();
  return Answer{.tokens = {answer.answer().begin(), answer.answer().end()}, .reason = reason};
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
    for (uint32_t first = 0; first < count; first += kScoredRows) {
      const auto part = std::min<uint32_t>(kScoredRows, static_cast<uint32_t>(count) - first);
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
