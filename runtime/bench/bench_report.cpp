#include "runtime/bench/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

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
        fmt::format("{:.2f} G", work.operations / 1e9),
        size_of(work.fetched)};
    if (!report.drafting.empty()) cells.push_back(acceptance_of(result));
    text += row(cells);
  }
  return text;
}

// Waiting for experts is counted by their store, within the stage that computes them.
StageSeconds with_waiting_apart(const BenchResult& result) {
  StageSeconds stages = result.stages;
  const auto at = [&](Stage stage) -> double& { return stages[static_cast<size_t>(stage)]; };
  const double waiting = std::min(result.expert_waiting, at(Stage::experts));
  at(Stage::experts) -= waiting;
  at(Stage::waiting) += waiting;
  return stages;
}

std::string stages_of(const BenchReport& report) {
  if (report.results.front().stages == StageSeconds{}) {
    return "Where the time went is measured on CPUs only: a GPU runs operations later than they are called.\n";
  }
  std::vector<std::string> names = {"% of the time"};
  names.insert(names.end(), kStageNames.begin(), kStageNames.end());
  std::string text = head(names);
  for (const BenchResult& result : report.results) {
    const StageSeconds stages = with_waiting_apart(result);
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
  if (limits.fetched > 0) text += fmt::format(", experts come at {:.2f} GB/s", limits.fetched / 1e9);
  return text + ". The floor is the longest of what memory, operations and fetching need at these rates.\n";
}

format::Json json_of(const BenchResult& result, const MachineLimits& limits) {
  const Work work = for_a_token(result);
  const auto [least, most] = std::ranges::minmax(result.seconds);
  format::Json json = {
      {"test", result.measured.name()},
      {"kind", result.measured.kind == BenchCase::Kind::prompt ? "prompt" : "answer"},
      {"tokens", result.measured.tokens},
      {"depth", result.measured.depth},
      {"seconds", result.seconds},
      {"tokens_per_second",
       {{"median", result.tokens_per_second()},
        {"least", result.tokens_per_second(most)},
        {"most", result.tokens_per_second(least)}}},
      {"a_token", {{"memory_bytes", work.bytes}, {"operations", work.operations}, {"fetched_bytes", work.fetched}}}};
  if (const Floor floor = result.floor(limits); floor.seconds > 0) {
    json["floor"] = {{"tokens_per_second", result.tokens_per_second(floor.seconds)},
                     {"share", share(result, floor)},
                     {"bound", floor.bound}};
  }
  if (result.stages != StageSeconds{}) json["seconds_by_stage"] = to_json(with_waiting_apart(result));
  if (result.drafted > 0) json["drafts"] = {{"drafted", result.drafted}, {"accepted", result.accepted}};
  return json;
}

}  // namespace

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
                         {"fetched_bytes_per_second", report.limits.fetched}}},
                       {"core_share", format::Json(nullptr)},
                       {"tests", format::Json::array()}};
  if (report.core_share) json["core_share"] = *report.core_share;
  for (const BenchResult& result : report.results)
    json["tests"].push_back(json_of(result, report.limits));
  return json;
}

}  // namespace dspack::runtime
