// Forty-eight conversations of two turns, greedy and with seeds, say what each says alone without drafts and caches:
// with a fixed number of drafts and one if it pays, with prefix caches in memory and on disk, one after the other and
// several at a time.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "runtime/generate/scheduler.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::same_text_test {
namespace {

using Tokens = std::vector<uint32_t>;

constexpr size_t kConversations = 48;
constexpr uint32_t kAnswerTokens = 6;
constexpr uint32_t kContext = 128;

Sampler sampler_of(const SamplerOptions& options) {
  auto sampler = Sampler::make(options);
  REQUIRE(sampler);
  return *std::move(sampler);
}

/// Of every four one is greedy, and the others are drawn in different ways.
SamplerOptions sampling_of(size_t conversation) {
  const uint64_t seed = conversation / 8;  // two conversations have the same seed, others neighbouring ones
  switch (conversation % 4) {
    case 0: return {};
    case 1: return {.temperature = 1, .seed = seed};
    case 2: return {.temperature = 2, .top_k = 40, .top_p = 0.9, .seed = seed};
    default: return {.temperature = 1.5, .min_p = 0.01, .presence_penalty = 0.5, .seed = seed};
  }
}

/// A prompt, and the answer that is wanted.
struct Turn {
  Tokens prompt;
  SamplerOptions sampling;
  Tokens wanted;
};

Tokens alone(Session& session, const Tokens& prompt, const SamplerOptions& sampling) {
  session.clear();
  Sampler sampler = sampler_of(sampling);
  const auto answer = session.generate(prompt, {.max_tokens = kAnswerTokens, .end_tokens = {}}, sampler,
                                       [](uint32_t) { return true; }, {});
  REQUIRE(answer);
  return answer->tokens;
}

/// All first turns, then the second ones, which continue them.
std::vector<Turn> turns() {
  test::RecordingModel rig(test::tiny_folder(), {.context = kContext});
  Session session = rig.session();
  const auto prompts = test::golden_prompts();
  std::vector<Turn> all;
  for (size_t i = 0; i < kConversations; ++i) {
    Tokens prompt = prompts[i / 4 % prompts.size()].tokens;  // what neighbours share
    prompt.resize(std::min<size_t>(prompt.size(), 40));
    prompt.push_back(static_cast<uint32_t>(200 + i / 12));
    const SamplerOptions sampling = sampling_of(i);
    const Tokens wanted = alone(session, prompt, sampling);
    all.push_back({.prompt = prompt, .sampling = sampling, .wanted = wanted});
  }
  for (size_t i = 0; i < kConversations; ++i) {
    Tokens prompt = all[i].prompt;
    prompt.insert(prompt.end(), all[i].wanted.begin(), all[i].wanted.end());
    prompt.insert(prompt.end(), {17, 29, static_cast<uint32_t>(300 + i)});
    const Tokens wanted = alone(session, prompt, all[i].sampling);
    all.push_back({.prompt = prompt, .sampling = all[i].sampling, .wanted = wanted});
  }
  return all;
}

class Listener final : public GenerationListener {
 public:
  Listener(bool wants_logits, std::function<void()> on_end) : wants_logits_(wants_logits), on_end_(std::move(on_end)) {}
  void started(uint32_t /*kept*/) override {}
  void prompt_read(uint32_t /*tokens*/) override {}
  bool wants_logits() const override { return wants_logits_; }
  bool token(uint32_t id, std::span<const float> /*logits*/) override {
    tokens.push_back(id);
    return true;
  }
  void drafted(uint32_t /*tokens*/, uint32_t /*accepted*/) override {}
  void ended(const Result<StopReason>& reason) override {
    if (!reason) error = reason.error().message;
    on_end_();
  }
  Tokens tokens;
  std::string error;

 private:
  bool wants_logits_;
  std::function<void()> on_end_;
};

struct Way {
  std::string name;
  std::optional<uint32_t> drafts;  // 0: none; absent: one if it pays
  uint32_t places = 1;
  bool in_turn = false;  // the next turn comes when the one before has ended, else all wait from the start
  uint64_t memory_blocks = 0;
  const std::filesystem::path* folder = nullptr;  // of a cache on disk
};

SchedulerCounts check_way(const Way& way, const std::vector<Turn>& turns) {
  CAPTURE(way.name);
  test::RecordingModel rig(test::tiny_folder(), {.context = kContext, .max_rows = 24});  // prompts come in pieces
  std::optional<SpeculationOptions> speculation;
  if (way.drafts != 0U) {
    (void)rig.mtp();
    speculation = SpeculationOptions{.drafts = way.drafts};
  }
  const auto log = [](const Error& error) { FAIL(error.message); };
  const KvIdentity identity{.digest = format::sha256("tiny"), .shape = rig.model().kv_shape(), .context = kContext};
  PrefixCache::Options room{.memory_bytes =
                                way.memory_blocks * identity.shape.block_bytes({0, PrefixCache::kBlockPositions})};
  if (way.folder != nullptr) {
    auto folder = PrefixFolder::open(format::posix_file_system(), *way.folder, identity, 100'000'000, log);
    REQUIRE(folder);
    room.folder = *std::move(folder);
  }
  const bool has_cache = way.memory_blocks > 0 || way.folder != nullptr;
  PrefixCache cache(identity, std::move(room), log);
  auto made = Scheduler::make(rig.engine(), {.places = way.places,
                                             .waiting = static_cast<uint32_t>(turns.size()),
                                             .speculation = speculation,
                                             .cache = has_cache ? &cache : nullptr});
  REQUIRE(made);
  Scheduler& scheduler = **made;

  std::vector<std::shared_ptr<Listener>> heard;
  const std::function<void()> submit_next = [&] {
    if (heard.size() == turns.size()) return scheduler.drain();
    const Turn& turn = turns[heard.size()];
    const auto on_end = way.in_turn ? submit_next : std::function<void()>([] {});
    heard.push_back(std::make_shared<Listener>(heard.size() % 2 == 0, on_end));
    CHECK(scheduler.submit(std::vector{Generation{.prompt = turn.prompt,
                                                  .max_tokens = kAnswerTokens,
                                                  .sampler = sampler_of(turn.sampling),
                                                  .listener = heard.back()}}));
  };
  submit_next();
  while (!way.in_turn && heard.size() < turns.size())
    submit_next();
  if (!way.in_turn) scheduler.drain();
  scheduler.run({});

  REQUIRE(heard.size() == turns.size());
  for (size_t i = 0; i < turns.size(); ++i) {
    CAPTURE(i);
    CHECK(heard[i]->error.empty());
    CHECK(heard[i]->tokens == turns[i].wanted);
  }
  const SchedulerCounts counts = scheduler.counts();
  MESSAGE(way.name, ": ", counts.accepted_drafts, " of ", counts.drafted_tokens, " drafts, ", counts.kept_tokens,
          " tokens kept, ", cache.counts().memory_tokens, " from memory, ", cache.counts().disk_tokens, " from disk");
  return counts;
}

TEST_CASE("same text: forty-eight conversations, with drafts and caches, alone and in company") {
  const std::vector<Turn> all = turns();
  const test::TempFolder folder;
  const std::filesystem::path cold = folder.path() / "cold", warm = folder.path() / "warm";
  for (const auto& path : {cold, warm})
    std::filesystem::create_directory(path);

  const auto plain = check_way({.name = "in company", .drafts = 0, .places = 5}, all);
  CHECK(plain.rows > plain.passes);
  const auto fixed =
      check_way({.name = "drafts, in company, memory", .drafts = 2, .places = 3, .memory_blocks = 8}, all);
  CHECK((fixed.accepted_drafts > 50 && fixed.drafted_tokens - fixed.accepted_drafts > 50));
  CHECK(fixed.cache->memory_tokens > 0);
  const auto disk = check_way({.name = "drafts, alone, disk", .drafts = 1, .in_turn = true, .folder = &cold}, all);
  CHECK(disk.accepted_drafts > 50);
  CHECK(disk.cache->disk_tokens > 100);
  // As many as pay, which depends on time: none, perhaps.
  check_way({.name = "drafts that pay, alone, memory", .drafts = {}, .in_turn = true, .memory_blocks = 8}, all);
  check_way({.name = "drafts that pay, in company, disk", .drafts = {}, .places = 4, .folder = &warm}, all);
  // After a restart: all of it is on disk.
  const auto again =
      check_way({.name = "drafts that pay, alone, disk again", .drafts = {}, .in_turn = true, .folder = &warm}, all);
  CHECK(again.cache->disk_tokens > 300);
}

}  // namespace
}  // namespace dspack::runtime::same_text_test
