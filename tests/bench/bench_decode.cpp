// Decoding with few slots for experts, beside the least time that it could take (runtime/experts/schedule.h), both
// from the same passes.
//
//   bench_decode DIR [SLOTS %] [TOKENS] [ROUNDS] [MB/s, 0: as the disk is] [DELAY us] [THREADS]
//
// Each pass takes one token, the one that the model's logits say, from token 0 on; a model of
// tests/tools/locality_model/generate.py speaks a text whose experts are as local as published. One round more fills
// the slots and is not counted. Printed for each round, and as medians:
//   bound      attention, router, norms, head + for each layer max(compute of hits, transfer of misses) + compute of
//   the
//              last miss
//   foresight  max(all compute, all transfer)
#include <algorithm>
#include <chrono>

#include "tests/bench/starved.h"

namespace dspack::runtime {
namespace {

using Clock = std::chrono::steady_clock;

struct Round {
  double seconds = 0;
  DecodeBound bound;
  PhaseStats counts;  // differences

  [[nodiscard]] double over_bound() const { return seconds / bound.seconds(seconds); }
  [[nodiscard]] double over_foresight() const { return seconds / bound.with_foresight(seconds); }
};

uint32_t pass(const Engine& engine, Sequence& sequence, uint32_t token, std::vector<float>& logits) {
  engine.model.experts().begin_pass({.phase = Phase::decode, .rows = 1, .draft_rows = 0});
  const HiddenStates states =
      value_of(engine.model.forward({.sequence = sequence, .tokens = {&token, 1}}, engine.scratch, {}));
  engine.picker.logits(states.final, logits);
  return static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin());
}

Round decode(LoadedModel& loaded, Sequence& sequence, uint32_t tokens, uint32_t& token) {
  std::vector<float> logits(loaded.model().config().vocab);
  const DecodeBound bound = loaded.experts().decode_bound();
  const PhaseStats counts = loaded.experts().stats().phases[static_cast<size_t>(Phase::decode)];
  const auto start = Clock::now();
  for (uint32_t i = 0; i < tokens; ++i)
    token = pass(loaded.engine(), sequence, token, logits);
  Round round{.seconds = std::chrono::duration<double>(Clock::now() - start).count(),
              .bound = loaded.experts().decode_bound().since(bound),
              .counts = loaded.experts().stats().phases[static_cast<size_t>(Phase::decode)]};
  round.counts.hits -= counts.hits;
  round.counts.late -= counts.late;
  for (size_t tier = 0; tier < 2; ++tier) {
    round.counts.misses[tier] -= counts.misses[tier];
    round.counts.bytes[tier] -= counts.bytes[tier];
  }
  round.counts.waiting_seconds -= counts.waiting_seconds;
  return round;
}

void print(const Round& round, uint32_t tokens) {
  const double ms = 1e3 / tokens;
  const auto misses = static_cast<double>(round.counts.all_misses());
  const auto asked = misses + static_cast<double>(round.counts.hits + round.counts.late);
  const auto bytes = static_cast<double>(round.counts.bytes[0] + round.counts.bytes[1]);
  fmt::print(
      "{:8.2f} ms/token = {:.3f} bound = {:.3f} foresight; hits {:.1f} %, {:.1f} misses a token, {:.1f} MB at {:.2f} "
      "GB/s; ms: outside of experts {:.2f}, compute {:.2f}, transfer {:.2f}, waiting {:.2f}\n",
      ms * round.seconds, round.over_bound(), round.over_foresight(), 100 * (1 - misses / asked), misses / tokens,
      1e-6 * bytes / tokens, 1e-9 * bytes / round.bound.transfer_seconds(), ms * round.bound.outside(round.seconds),
      ms * round.bound.compute_seconds(), ms * round.bound.transfer_seconds(), ms * round.counts.waiting_seconds);
  (void)std::fflush(stdout);
}

int run(const StarvedOptions& options) {
  const auto rounds = static_cast<uint32_t>(options.rounds);
  const auto loaded = load_starved(options, (rounds + 1) * options.tokens + 1, std::nullopt);
  const ExpertStoreStats stats = loaded->experts().stats();
  fmt::print("{}; {} of {} experts have slots, {:.2f} GB; policy {}\n", loaded->device().description(), stats.slots,
             loaded->checkpoint().experts().size(), 1e-9 * static_cast<double>(stats.slot_bytes), stats.policy);
  uint32_t token = 0;
  Sequence sequence = value_of(loaded->model().make_sequence());
  decode(*loaded, sequence, options.tokens, token);
  std::vector<double> bound, foresight;
  for (uint32_t i = 0; i < rounds; ++i) {
    const Round round = decode(*loaded, sequence, options.tokens, token);
    print(round, options.tokens);
    bound.push_back(round.over_bound());
    foresight.push_back(round.over_foresight());
  }
  fmt::print("median: {:.3f} of the bound (wanted: at most 1.10), {:.3f} of max(all compute, all transfer)\n",
             median(bound), median(foresight));
  return 0;
}

}  // namespace
}  // namespace dspack::runtime

int main(int argc, char** argv) {
  return dspack::runtime::run(dspack::runtime::parse_starved(argc, argv, "bench_decode"));
}
