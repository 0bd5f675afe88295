// What prefetching costs and brings: decoding with few slots on a storage of a set speed, without it, with it, and with
// it as the governor decides.
//
//   bench_prefetch DIR [SLOTS %] [TOKENS] [ROUNDS] [MB/s, 0: as the disk is] [DELAY us] [THREADS]
//
// Three models of the same folder take rounds in turn, each on with its own text, which is the same: the token that the
// logits say, from token 0 on. The first round of each fills the slots and is not counted.
#include <algorithm>
#include <array>
#include <chrono>

#include "tests/bench/starved.h"

namespace dspack::runtime {
namespace {

using Clock = std::chrono::steady_clock;

class Runner {
 public:
  Runner(StarvedOptions options, PrefetchMode mode) : mode_(mode) {
    options.prefetch = mode;
    loaded_ = load_starved(options, (static_cast<uint32_t>(options.rounds) + 1) * options.tokens + 1, std::nullopt);
    sequence_.emplace(value_of(loaded_->model().make_sequence()));
    logits_.resize(loaded_->model().config().vocab);
  }

  /// Seconds.
  double round(uint32_t tokens) {
    const auto start = Clock::now();
    for (uint32_t i = 0; i < tokens; ++i) {
      const Engine engine = loaded_->engine();
      engine.model.experts().begin_pass({.phase = Phase::decode, .rows = 1, .draft_rows = 0});
      const HiddenStates states =
          value_of(engine.model.forward({.sequence = *sequence_, .tokens = {&token_, 1}}, engine.scratch, {}));
      engine.picker.logits(states.final, logits_);
      token_ = static_cast<uint32_t>(std::ranges::max_element(logits_) - logits_.begin());
      ++passes_;
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void print(const std::vector<double>& ratios, const std::vector<double>& seconds, uint32_t tokens) const {
    const ExpertStoreStats stats = loaded_->experts().stats();
    const PhaseStats& counts = stats.phases[static_cast<size_t>(Phase::decode)];
    const auto share = [](uint64_t part, uint64_t whole) {
      return whole == 0 ? 0.0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
    };
    const auto kilobytes = [&](uint64_t bytes) { return 1e-3 * static_cast<double>(bytes) / passes_; };
    fmt::print(
        "{:5} {:8.3f} ms/token = {:.3f} of off; a token: {:.1f} misses, {:.1f} late, {:.1f} kB wanted, {:.1f} kB "
        "useful, "
        "{:.1f} kB wasted; forecast right {:.1f} %, finds {:.1f} % of what is wanted{}\n",
        to_string(mode_), 1e3 * median(seconds) / tokens, median(ratios),
        static_cast<double>(counts.all_misses()) / passes_, static_cast<double>(counts.late) / passes_,
        kilobytes(counts.bytes[0] + counts.bytes[1]), kilobytes(counts.useful_bytes), kilobytes(counts.wasted_bytes),
        share(counts.foreseen, counts.expected), share(counts.foreseen, counts.foreseeable),
        stats.prefetch_switched_off ? "; has switched itself off" : "");
  }

 private:
  PrefetchMode mode_;
  std::unique_ptr<LoadedModel> loaded_;
  std::optional<Sequence> sequence_;
  std::vector<float> logits_;
  uint32_t token_ = 0;
  double passes_ = 0;
};

int run(const StarvedOptions& options) {
  std::array<Runner, 3> runners = {Runner(options, PrefetchMode::off), Runner(options, PrefetchMode::on),
                                   Runner(options, PrefetchMode::automatic)};
  std::array<std::vector<double>, 3> seconds, ratios;
  for (Runner& runner : runners)
    runner.round(options.tokens);
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < runners.size(); ++i) {
      seconds[i].push_back(runners[i].round(options.tokens));
      ratios[i].push_back(seconds[i].back() / seconds[0].back());
    }
  }
  for (size_t i = 0; i < runners.size(); ++i)
    runners[i].print(ratios[i], seconds[i], options.tokens);
  return 0;
}

}  // namespace
}  // namespace dspack::runtime

int main(int argc, char** argv) {
  return dspack::runtime::run(dspack::runtime::parse_starved(argc, argv, "bench_prefetch"));
}
