#include "runtime/bench/bench.h"

#include <algorithm>
#include <random>

#include "format/base/size.h"
#include "runtime/budget/turn_timer.h"

namespace dspack::runtime {

double BenchResult::tokens_per_second(double of_seconds) const {
  return of_seconds > 0 ? measured.tokens / of_seconds : 0;
}

double BenchResult::tokens_per_second() const {
  return tokens_per_second(median(seconds));
}

Floor BenchResult::floor(const MachineLimits& limits) const {
  Floor floor = floor_of(work, limits);
  if (!seconds.empty()) floor.seconds /= static_cast<double>(seconds.size());
  return floor;
}

std::vector<uint32_t> random_text(uint64_t count, uint32_t vocab) {
  std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same text every time
  std::vector<uint32_t> text(count);
  for (uint32_t& token : text)
    token = static_cast<uint32_t>(uint64_t{random()} * vocab >> 32U);
  return text;
}

/// Running totals of one phase.
struct Bench::Counters {
  double seconds = 0;
  StageSeconds stages{};
  PassCounts counts;
  double expert_waiting = 0;
  uint64_t accepted = 0;

  /// Keeps only what was added since `before`.
  void subtract(const Counters& before) {
    seconds -= before.seconds;
    for (size_t stage = 0; stage < kStages; ++stage)
      stages[stage] -= before.stages[stage];
    counts.passes -= before.counts.passes;
    counts.tokens -= before.counts.tokens;
    counts.module_passes -= before.counts.module_passes;
    counts.experts -= before.counts.experts;
    counts.fetched_bytes -= before.counts.fetched_bytes;
    expert_waiting -= before.expert_waiting;
    accepted -= before.accepted;
  }
};

Bench::Counters Bench::counters(BenchCase::Kind kind) const {
  const SessionTimes& times = session_.times();
  const ExpertStoreStats stats = loaded_.experts().stats();
  const bool is_prompt = kind == BenchCase::Kind::prompt;
  const PhaseStats& phase = stats.phases[static_cast<size_t>(is_prompt ? Phase::prefill : Phase::decode)];
  Counters now{.seconds = is_prompt ? times.prefill_seconds : times.decode_seconds,
               .stages = is_prompt ? times.prefill_stages : times.decode_stages,
               .counts = {},
               .expert_waiting = phase.waiting_seconds};
  now.counts.passes = times.decode_passes;
  now.counts.tokens = is_prompt ? times.prefill_tokens : times.decode_tokens;
  now.counts.experts = phase.hits + phase.late + phase.all_misses();
  now.counts.fetched_bytes = phase.bytes[0] + phase.bytes[1] + phase.prefetched_bytes +
                             loaded_.access().bytes_read(WeightPurpose::always_needed);  // streamed layers
  if (const Speculator* speculator = session_.speculator()) {
    now.counts.module_passes = speculator->stats().drafted;
    now.accepted = speculator->stats().accepted;
  }
  return now;
}

Result<void> Bench::speak(std::span<const uint32_t> prompt, uint32_t tokens, const TokenCallback& on_token,
                          const std::stop_token& stop) {
  TRY_ASSIGN(Sampler sampler, Sampler::make({}));
  TRY_ASSIGN(const Answer answer,
             session_.generate(prompt, {.max_tokens = tokens, .end_tokens = {}}, sampler, on_token, stop));
  if (answer.reason == StopReason::interrupted) return Error{ErrorKind::cancelled, "the benchmark was interrupted"};
  DSPACK_CHECK(answer.tokens.size() == tokens, "a context that is too short");
  return {};
}

// The tokens before the case, and those that it reads.
std::vector<uint32_t> Bench::text_of(const BenchCase& what) const {
  std::vector<uint32_t> text = options_.text;
  const uint32_t period = options_.computed_depth;
  for (uint32_t i = period; period > 0 && i < what.depth; ++i)
    text[i] = text[i - period];
  return text;
}

// Brings the sequence to the case's depth.
Result<void> Bench::prepare(const BenchCase& what, std::span<const uint32_t> text, const std::stop_token& stop) {
  if (what.depth == 0) {
    session_.clear();
    return {};
  }
  const uint32_t computed = options_.computed_depth == 0 ? what.depth : std::min(what.depth, options_.computed_depth);
  TRY(speak(
      text.first(computed), 1, [](uint32_t) { return true; }, stop));
  if (computed < what.depth) session_.sequence().repeat(what.depth - computed);
  return {};
}

Result<BenchResult> Bench::run(const BenchCase& what, const Progress& progress, const std::stop_token& stop) {
  const bool is_prompt = what.kind == BenchCase::Kind::prompt;
  const uint32_t first = is_prompt ? what.depth : std::max(1U, what.depth);
  const std::vector<uint32_t> text = text_of(what);
  BenchResult result{.measured = what, .seconds = {}, .work = {}};
  const uint32_t warm_ups = options_.warms_up ? 1 : 0;
  uint64_t done = 0;
  for (uint32_t turn = 0; turn < warm_ups + options_.repetitions; ++turn) {
    progress(done);
    TRY(prepare(what, text, stop));
    const Counters before = counters(what.kind);
    if (is_prompt) {
      TRY(speak(
          std::span(text).first(uint64_t{first} + what.tokens), 1, [](uint32_t) { return true; }, stop));
      done += what.tokens;
    } else {
      const auto count = [&](uint32_t) {
        progress(done++);
        return true;
      };
      TRY(speak(std::span(text).first(first), what.tokens + 1, count, stop));
      --done;  // the first token is the prompt's
    }
    if (turn < warm_ups) continue;
    Counters spent = counters(what.kind);
    spent.subtract(before);
    spent.counts.first = first;
    // A prompt's case generates one token, at its end.
    if (is_prompt) spent.counts.passes = ceil_div(uint64_t{what.tokens}, loaded_.model().max_rows());
    spent.counts.chosen = is_prompt ? 1 : spent.counts.passes;
    result.seconds.push_back(spent.seconds);
    result.work += work_of(model_work(loaded_), spent.counts);
    for (size_t stage = 0; stage < kStages; ++stage)
      result.stages[stage] += spent.stages[stage];
    result.expert_waiting += spent.expert_waiting;
    result.drafted += spent.counts.module_passes;
    result.accepted += spent.accepted;
  }
  progress(done);
  return result;
}

}  // namespace dspack::runtime
