// Decoding with few slots for experts: --mtp auto beside --mtp off, and --mtp 1 for comparison.
//
//   bench_mtp_starved DIR [SLOTS %] [TOKENS] [ROUNDS] [MB/s, 0: as the disk is] [DELAY us] [THREADS]
//
// Each round decodes once in each mode, in turn, from an empty cache and with a policy that knows nothing; the slots
// hold what the run before it left. Medians over the rounds of each mode's time as a multiple of that of `off` in the
// same round. A model of tests/tools/locality_model/generate.py --deep has V3's ratio of layers to MTP module.
#include "runtime/generate/session.h"
#include "tests/bench/starved.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kPromptTokens = 4;

struct Mode {
  const char* name;
  std::optional<SpeculationOptions> speculation;
  std::vector<double> seconds = {};  // a token, by round
  std::vector<double> of_off = {};
  double tokens_per_pass = 0;
  uint64_t drafted = 0;
  PhaseStats counts = {};  // of the last round
};

std::vector<uint32_t> decode(LoadedModel& loaded, Mode& mode, uint32_t first, uint32_t count) {
  const auto drafting = mode.speculation ? Model::Drafting::mtp : Model::Drafting::none;
  Session session(loaded.engine(), value_of(loaded.model().make_sequence(drafting)), mode.speculation);
  Sampler sampler = value_of(Sampler::make({}));
  std::vector<uint32_t> prompt(kPromptTokens);
  for (uint32_t i = 0; i < kPromptTokens; ++i)
    prompt[i] = first + i;
  const PhaseStats before = loaded.experts().stats().phases[static_cast<size_t>(Phase::decode)];
  const Answer answer = value_of(
      session.generate(prompt, {.max_tokens = count, .end_tokens = {}}, sampler, [](uint32_t) { return true; }, {}));
  mode.counts = loaded.experts().stats().phases[static_cast<size_t>(Phase::decode)];
  mode.counts.misses[0] -= before.misses[0];
  mode.counts.draft_misses -= before.draft_misses;
  const SessionTimes& times = session.times();
  mode.seconds.push_back(times.decode_seconds / static_cast<double>(times.decode_tokens));
  mode.tokens_per_pass = static_cast<double>(times.decode_tokens) / static_cast<double>(times.decode_passes);
  mode.drafted = session.speculator() != nullptr ? session.speculator()->stats().drafted : 0;
  return answer.tokens;
}

int run(const StarvedOptions& options) {
  const auto loaded =
      load_starved(options, kPromptTokens + options.tokens + 16, SpeculationOptions{.drafts = std::nullopt});
  const ExpertStoreStats stats = loaded->experts().stats();
  fmt::print("{}; {} of {} experts have slots; policy {}; {} tokens follow {}\n", loaded->device().description(),
             stats.slots, loaded->checkpoint().experts().size(), stats.policy, options.tokens, kPromptTokens);
  std::vector<Mode> modes = {{.name = "off", .speculation = std::nullopt},
                             {.name = "auto", .speculation = SpeculationOptions{.drafts = std::nullopt}},
                             {.name = "1", .speculation = SpeculationOptions{.drafts = 1}}};
  decode(*loaded, modes[0], 0, options.tokens);
  modes[0].seconds.clear();
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<uint32_t> said;
    for (Mode& mode : modes) {
      const std::vector<uint32_t> answer = decode(*loaded, mode, 0, options.tokens);
      if (said.empty()) said = answer;
      if (answer != said) {
        fmt::print(stderr, "bench_mtp_starved: --mtp {} says something else\n", mode.name);
        return 1;
      }
      mode.of_off.push_back(mode.seconds.back() / modes[0].seconds.back());
      fmt::print(
          "--mtp {:4}: {:8.2f} ms/token, {:.3f} of off; {:.2f} tokens a pass, {} drafted, {} misses, {} of "
          "drafts alone\n",
          mode.name, 1e3 * mode.seconds.back(), mode.of_off.back(), mode.tokens_per_pass, mode.drafted,
          mode.counts.misses[0], mode.counts.draft_misses);
      (void)std::fflush(stdout);
    }
  }
  for (const Mode& mode : modes)
    fmt::print("median of --mtp {:4}: {:8.2f} ms/token, {:.3f} of off\n", mode.name, 1e3 * median(mode.seconds),
               median(mode.of_off));
  return 0;
}

}  // namespace
}  // namespace dspack::runtime

int main(int argc, char** argv) {
  return dspack::runtime::run(dspack::runtime::parse_starved(argc, argv, "bench_mtp_starved"));
}
