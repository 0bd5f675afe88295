// Answers of several sequences made at once, beside one at a time: tokens a second in all, and what a token reads.
//
//   bench_sequences DIR [SLOTS %] [TOKENS] [ROUNDS] [MB/s, 0: as the disk is] [DELAY us] [THREADS]
//
// Each round asks eight questions of random tokens with one place, with two, four and eight, in turn. The slots hold
// what the run before left. Medians over the rounds; ratios are to one place in the same round.
#include <random>

#include "runtime/generate/scheduler.h"
#include "tests/bench/starved.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kQuestions = 8;
constexpr uint32_t kPromptTokens = 16;

class Listener final : public GenerationListener {
 public:
  void started(uint32_t /*kept*/) override {}
  void prompt_read(uint32_t /*tokens*/) override {}
  bool wants_logits() const override { return false; }
  bool token(uint32_t id, std::span<const float> /*logits*/) override {
    said.push_back(id);
    return true;
  }
  void drafted(uint32_t /*tokens*/, uint32_t /*accepted*/) override {}
  void ended(const Result<StopReason>& reason) override {
    if (!reason) fmt::print(stderr, "{}\n", reason.error().message);
  }

  std::vector<uint32_t> said;
};

struct Run {
  double tokens_per_second = 0;  // of all answers, prompts included in the time
  double megabytes_a_token = 0;
  std::vector<std::vector<uint32_t>> said = {};
};

Run ask(LoadedModel& loaded, uint32_t places, uint32_t tokens) {
  const auto scheduler = value_of(Scheduler::make(loaded.engine(), {.places = places, .waiting = kQuestions}));
  std::vector<std::shared_ptr<Listener>> listeners;
  std::mt19937 random(7);
  for (uint32_t i = 0; i < kQuestions; ++i) {
    std::vector<uint32_t> prompt(kPromptTokens);
    for (uint32_t& token : prompt)
      token = static_cast<uint32_t>(random() % loaded.model().config().vocab);
    listeners.push_back(std::make_shared<Listener>());
    std::vector<Generation> one;
    one.push_back({.prompt = std::move(prompt),
                   .max_tokens = tokens,
                   .sampler = value_of(Sampler::make({})),
                   .listener = listeners.back()});
    if (const auto taken = scheduler->submit(std::move(one)); !taken) value_of(Result<int>(taken.error()));
  }
  const uint64_t read = loaded.experts().stats().bytes_read();
  const auto start = std::chrono::steady_clock::now();
  scheduler->drain();
  scheduler->run({});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double all = static_cast<double>(tokens) * kQuestions;
  Run run{.tokens_per_second = all / seconds,
          .megabytes_a_token = 1e-6 * static_cast<double>(loaded.experts().stats().bytes_read() - read) / all};
  for (const auto& listener : listeners)
    run.said.push_back(listener->said);
  return run;
}

int run(const StarvedOptions& options) {
  const auto loaded = load_starved(options, kPromptTokens + options.tokens + 1, std::nullopt);
  const ExpertStoreStats stats = loaded->experts().stats();
  fmt::print("{}; {} of {} experts have slots; policy {}; {} questions of {} tokens, {} tokens each\n",
             loaded->device().description(), stats.slots, loaded->checkpoint().experts().size(), stats.policy,
             kQuestions, kPromptTokens, options.tokens);
  const std::vector<uint32_t> places = {1, 2, 4, 8};
  std::vector<std::vector<double>> speeds(places.size()), ratios(places.size()), reads(places.size());
  (void)ask(*loaded, 1, options.tokens);
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<Run> runs;
    for (const uint32_t each : places)
      runs.push_back(ask(*loaded, each, options.tokens));
    for (size_t i = 0; i < places.size(); ++i) {
      if (runs[i].said != runs[0].said) {
        fmt::print(stderr, "bench_sequences: {} at once say something else than one at a time\n", places[i]);
        return 1;
      }
      speeds[i].push_back(runs[i].tokens_per_second);
      ratios[i].push_back(runs[i].tokens_per_second / runs[0].tokens_per_second);
      reads[i].push_back(runs[i].megabytes_a_token);
    }
  }
  for (size_t i = 0; i < places.size(); ++i)
    fmt::print("{} at once: {:8.2f} tokens/s in all, {:.2f} of one at a time; {:8.1f} MB a token\n", places[i],
               median(speeds[i]), median(ratios[i]), median(reads[i]));
  return 0;
}

}  // namespace
}  // namespace dspack::runtime

int main(int argc, char** argv) {
  return dspack::runtime::run(dspack::runtime::parse_starved(argc, argv, "bench_sequences"));
}
