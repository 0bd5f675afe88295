#include "runtime/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "format/base/size.h"
#include "runtime/experts/policy/lru.h"

namespace dspack::runtime {

namespace {

double ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double hit_rate(const ReplayCounts& counts) {
  return ratio(counts.hits, counts.hits + counts.misses);
}

// Experts that one decoded token is routed to, over all layers of the trace.
uint64_t token_experts(const Workload& workload) {
  return uint64_t{workload.header().top_k} * workload.layers();
}

std::string notes(const Workload& workload, uint64_t slots) {
  std::string text;
  if (slots < workload.floor()) {
    text += fmt::format("  fewer than the {} experts that a layer requests at once: the layer runs in waves\n",
                        workload.floor());
  } else if (slots < token_experts(workload)) {
    text += fmt::format("  fewer than one token's {} experts: lru hardly ever hits\n", token_experts(workload));
  }
  return text;
}

nlohmann::json counts_json(const ReplayCounts& counts, uint64_t tokens) {
  return {{"hits", counts.hits},
          {"misses", counts.misses},
          {"bytes", counts.bytes},
          {"known_misses", counts.known_misses},
          {"misses_per_token", ratio(counts.misses, tokens)},
          {"bytes_per_token", ratio(counts.bytes, tokens)}};
}

}  // namespace

ReplayReport replay(const Workload& workload, uint64_t slots, std::span<const NamedPolicy> policies) {
  ReplayReport report{.slots = slots, .outcomes = {}};
  LruPolicy lru;
  const ReplayResult recent = simulate(workload, slots, lru);
  for (const NamedPolicy& named : policies) {
    if (named.name == lru.name()) {
      report.outcomes.push_back({.name = std::string(named.name), .result = recent, .gap_closed = {}});
      continue;
    }
    const auto policy = named.make();
    report.outcomes.push_back(
        {.name = std::string(named.name), .result = simulate(workload, slots, *policy), .gap_closed = {}});
  }
  BeladyPolicy belady(workload);
  report.outcomes.push_back(
      {.name = std::string(belady.name()), .result = simulate(workload, slots, belady), .gap_closed = {}});
  const auto gap = static_cast<double>(recent.misses() - report.outcomes.back().result.misses());
  for (PolicyOutcome& outcome : report.outcomes) {
    const double avoided = static_cast<double>(recent.misses()) - static_cast<double>(outcome.result.misses());
    if (gap > 0) outcome.gap_closed = avoided / gap;
  }
  return report;
}

std::string describe(const Workload& workload) {
  const RouteHeader& header = workload.header();
  return fmt::format("{}: {} layers, {} experts of up to {}, top {}; {} prompt tokens, {} decoded tokens",
                     header.model_type, workload.layers(), workload.experts(), size_words(workload.expert_bytes()),
                     header.top_k, workload.tokens(Phase::prefill), workload.tokens(Phase::decode));
}

std::string to_table(const Workload& workload, const ReplayReport& report) {
  const bool has_known = std::ranges::any_of(workload.header().layers, &RoutedLayerShape::is_by_token);
  std::string text =
      fmt::format("{} slots: {:.1f} % of the experts, {}, {:.2f} tokens' experts\n", report.slots,
                  100 * ratio(report.slots, workload.experts()), size_words(report.slots * workload.expert_bytes()),
                  ratio(report.slots, token_experts(workload)));
  text += notes(workload, report.slots);
  text += fmt::format("  {:<12}{:>14}{:>14}{:>10}{:>12}{:>16}{}\n", "policy", "misses/token", "MB/token", "hits",
                      "gap closed", "prompt misses", has_known ? "  known before" : "");
  const uint64_t tokens = workload.tokens(Phase::decode);
  for (const PolicyOutcome& outcome : report.outcomes) {
    const ReplayCounts& decode = outcome.result.of(Phase::decode);
    const std::string closed = outcome.gap_closed ? fmt::format("{:.1f} %", 100 * *outcome.gap_closed) : "-";
    const std::string known =
        has_known ? fmt::format("{:>12.1f} %", 100 * ratio(decode.known_misses, decode.misses)) : "";
    text += fmt::format("  {:<12}{:>14.2f}{:>14.2f}{:>8.1f} %{:>12}{:>16}{}\n", outcome.name,
                        ratio(decode.misses, tokens), ratio(decode.bytes, tokens) / 1e6, 100 * hit_rate(decode), closed,
                        outcome.result.of(Phase::prefill).misses, known);
  }
  return text;
}

format::Json to_json(const Workload& workload, std::span<const ReplayReport> reports) {
  nlohmann::json list = nlohmann::json::array();
  for (const ReplayReport& report : reports) {
    nlohmann::json policies = nlohmann::json::array();
    for (const PolicyOutcome& outcome : report.outcomes) {
      nlohmann::json entry = {
          {"policy", outcome.name},
          {"prefill", counts_json(outcome.result.of(Phase::prefill), workload.tokens(Phase::prefill))},
          {"decode", counts_json(outcome.result.of(Phase::decode), workload.tokens(Phase::decode))},
          {"gap_closed", nullptr}};
      if (outcome.gap_closed) entry["gap_closed"] = *outcome.gap_closed;
      policies.push_back(std::move(entry));
    }
    list.push_back({{"slots", report.slots}, {"policies", std::move(policies)}});
  }
  return {{"model_type", workload.header().model_type},
          {"experts", workload.experts()},
          {"expert_bytes", workload.expert_bytes()},
          {"top_k", workload.header().top_k},
          {"prefill_tokens", workload.tokens(Phase::prefill)},
          {"decode_tokens", workload.tokens(Phase::decode)},
          {"floor_slots", workload.floor()},
          {"results", std::move(list)}};
}

}  // namespace dspack::runtime
