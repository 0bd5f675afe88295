#include "runtime/bench/bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "dspack_version.h"
#include "format/base/size.h"
#include "runtime/budget/turn_timer.h"
#include "runtime/generate/stats.h"

namespace dspack::runtime {
namespace {

constexpr std::string_view kUnknown = "-";

std::string row(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string head(const std::vector<std::string>& cells) {
  return row(cells) + row(std::vector<std::string>(cells.size(), "---"));
}

std::string size_of(double bytes) {
  return size_words(static_cast<uint64_t>(bytes));
}

double share(const BenchResult& result, const Floor& floor) {
  return floor.seconds / median(result.seconds);
}

std::string speed_of(const BenchResult& result) {
  const auto [least, most] = std::ranges::minmax(result.seconds);
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", result.tokens_per_second(), result.tokens_per_second(most),
                     result.tokens_per_second(least));
}

std::string acceptance_of(const BenchResult& result) {
  if (result.drafted == 0) return std::string(kUnknown);
  return fmt::format("{:.0f} % of {}",
                     100.0 * static_cast<double>(result.accepted) / static_cast<double>(result.drafted),
                     result.drafted);
}

// The work per token.
Work for_a_token(const BenchResult& result) {
  const double tokens = static_cast<double>(result.seconds.size()) * result.measured.tokens;
  return {.bytes = result.work.bytes / tokens,
          .operations = result.work.operations / tokens,
          .attention = result.work.attention / tokens,
          .fetched = result.work.fetched / tokens};
}

std::string speeds(const BenchReport& report) {
  std::vector<std::string> names = {"test",           "tokens/s",           "floor",          "share", "bound by",
                                    "memory a token", "operations a token", "fetched a token"};
  if (!report.drafting.empty()) names.emplace_back("accepted drafts");
  std::string text = head(names);
  for (const BenchResult& result : report.results) {
    const Floor floor = result.floor(report.limits);
    const Work work = for_a_token(result);
    const bool is_known = floor.seconds > 0;
    std::vector<std::string> cells = {
        result.measured.name(),
        speed_of(result),
        is_known ? fmt::format("{:.2f}", result.tokens_per_second(floor.seconds)) : std::string(kUnknown),
        is_known ? fmt::format("{:.2f}", share(result, floor)) : std::string(kUnknown),
        is_known ? std::string(floor.bound) : std::string(kUnknown),
        size_of(work.bytes),
        fmt::format("{:.2f} G", (work.operations + work.attention) / 1e9),
        size_of(work.fetched)};
    if (!report.drafting.empty()) cells.push_back(acceptance_of(result));
    text += row(cells);
  }
  return text;
}

std::string stages_of(const BenchReport& report) {
  if (report.results.front().stages == StageSeconds{}) {
    return "Where the time went is measured on CPUs only: a GPU runs operations later than they are called.\n";
  }
  std::vector<std::string> names = {"% of the time"};
  names.insert(names.end(), kStageNames.begin(), kStageNames.end());
  std::string text = head(names);
  for (const BenchResult& result : report.results) {
    const StageSeconds stages = with_waiting_apart(result.stages, result.expert_waiting);
    const double all = std::accumulate(stages.begin(), stages.end(), 0.0);
    std::vector<std::string> cells = {result.measured.name()};
    for (const double seconds : stages)
      cells.push_back(fmt::format("{:.1f}", all > 0 ? 100 * seconds / all : 0));
    text += row(cells);
  }
  return text;
}

std::string limits_of(const BenchReport& report) {
  const MachineLimits& limits = report.limits;
  if (limits.bytes <= 0) return "Floors are computed for CPUs only.\n";
  std::string text = fmt::format("Measured in this run: memory reads {:.1f} GB/s, {} {:.0f} GFLOP/s",
                                 limits.bytes / 1e9, kernels::to_string(report.precision), limits.operations / 1e9);
  if (report.precision != kernels::Precision::exact)
    text += fmt::format(", attention's FP32 {:.0f}", limits.exact_operations / 1e9);
  if (limits.fetched > 0) text += fmt::format(", experts come at {:.2f} GB/s", limits.fetched / 1e9);
  return text + ". The floor is the longest of what memory, operations and fetching need at these rates.\n";
}

format::Json json_of(const BenchResult& result, const MachineLimits& limits) {
  const Work work = for_a_token(result);
  const auto [least, most] = std::ranges::minmax(result.seconds);
  format::Json json = {{"test", result.measured.name()},
                       {"kind", result.measured.kind == BenchCase::Kind::prompt ? "prompt" : "answer"},
                       {"tokens", result.measured.tokens},
                       {"depth", result.measured.depth},
                       {"seconds", result.seconds},
                       {"tokens_per_second",
                        {{"median", result.tokens_per_second()},
                         {"least", result.tokens_per_second(most)},
                         {"most", result.tokens_per_second(least)}}},
                       {"a_token",
                        {{"memory_bytes", work.bytes},
                         {"operations", work.operations},
                         {"attention_operations", work.attention},
                         {"fetched_bytes", work.fetched}}}};
  if (const Floor floor = result.floor(limits); floor.seconds > 0) {
    json["floor"] = {{"tokens_per_second", result.tokens_per_second(floor.seconds)},
                     {"share", share(result, floor)},
                     {"bound", floor.bound}};
  }
  if (result.stages != StageSeconds{})
    json["seconds_by_stage"] = to_json(with_waiting_apart(result.stages, result.expert_waiting));
  if (result.drafted > 0) json["drafts"] = {{"drafted", result.drafted}, {"accepted", result.accepted}};
  return json;
}

}  // namespace

std::string BenchCase::name() const {
  const std::string what = fmt::format("{}{}", kind == Kind::prompt ? "pp" : "tg", tokens);
  return depth == 0 ? what : fmt::format("{} @ d{}", what, depth);
}

// An answer needs something to continue, and its last token is never read.
uint64_t BenchCase::positions() const {
  return kind == Kind::prompt ? uint64_t{depth} + tokens : std::max<uint64_t>(1, depth) + tokens;
}

std::vector<BenchCase> bench_cases(const std::vector<uint32_t>& prompts, const std::vector<uint32_t>& answers,
                                   const std::vector<uint32_t>& depths) {
  std::vector<BenchCase> cases;
  for (const uint32_t depth : depths) {
    for (const uint32_t tokens : prompts) {
      if (tokens > 0) cases.push_back({.kind = BenchCase::Kind::prompt, .tokens = tokens, .depth = depth});
    }
    for (const uint32_t tokens : answers) {
      if (tokens > 0) cases.push_back({.kind = BenchCase::Kind::answer, .tokens = tokens, .depth = depth});
    }
  }
  return cases;
}

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

std::string to_markdown(const BenchReport& report) {
  std::string text =
      fmt::format("{}, {}; {}, precision {}; {} of {} experts in memory at most; context {}; text: {}{}\n\n",
                  report.model, size_words(report.model_bytes), report.device, kernels::to_string(report.precision),
                  std::min(report.slots, report.experts), report.experts, report.context, report.text,
                  report.drafting.empty() ? "" : "; drafts: " + report.drafting);
  if (report.core_share)
    text +=
        fmt::format("The threads got {:.0f} % of the processor time that they wanted.\n\n", 100 * *report.core_share);
  return text + speeds(report) + "\n" + stages_of(report) + "\n" + limits_of(report);
}

format::Json to_json(const BenchReport& report) {
  format::Json json = {{"version", kVersion},
                       {"model", report.model},
                       {"model_bytes", report.model_bytes},
                       {"device", report.device},
                       {"precision", kernels::to_string(report.precision)},
                       {"context", report.context},
                       {"experts", report.experts},
                       {"slots", report.slots},
                       {"drafting", report.drafting},
                       {"text", report.text},
                       {"limits",
                        {{"memory_bytes_per_second", report.limits.bytes},
                         {"operations_per_second", report.limits.operations},
                         {"exact_operations_per_second", report.limits.exact_operations},
                         {"fetched_bytes_per_second", report.limits.fetched}}},
                       {"core_share", format::Json(nullptr)},
                       {"tests", format::Json::array()}};
  if (report.core_share) json["core_share"] = *report.core_share;
  for (const BenchResult& result : report.results)
    json["tests"].push_back(json_of(result, report.limits));
  return json;
}

}  // namespace dspack::runtime
