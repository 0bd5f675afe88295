// DeepSeek-V4's graph against two references that agree (tests/tools/family/window_reference.py and transformers), and
// its state: however a prompt is cut, whoever else is in the pass, and wherever a sequence comes from, the bits are the
// same.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "runtime/cli/saved_chat.h"
#include "runtime/generate/find_identity.h"
#include "runtime/generate/prefix_cache.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::window_golden_test {
namespace {

using Tokens = std::vector<uint32_t>;

constexpr double kMaxNmse = 1e-10;
// v4: windows alone, entries of 128, chosen entries of 4; v4-pro: entries in the first layers, two streams.
const std::vector<std::string> kVariants = {"v4", "v4-pro"};
// About the windows' ends, blocks of 4 and 128, and the numbers of entries that may be chosen.
const std::vector<size_t> kLengths = {1,  2,  3,  4,  5,   7,   8,   15,  16,  17,  23,
                                      24, 25, 48, 80, 127, 128, 129, 255, 256, 257, 260};

struct Golden {
  Tokens tokens;
  test::StoredTensor logits;
};

Golden golden_of(const std::string& variant) {
  auto stored = test::read_safetensors(test::family_folder() / variant / "golden.safetensors");
  const auto tokens = stored.at("long.tokens").as<int32_t>();
  return {.tokens = {tokens.begin(), tokens.end()}, .logits = stored.at("long.logits")};
}

struct Rig {
  explicit Rig(const std::string& variant, test::RigOptions options = {})
      : golden(golden_of(variant)), model(test::family_folder() / variant, [&] {
          options.context = 300;
          options.max_rows = 1200;
          return options;
        }()) {}

  [[nodiscard]] uint32_t vocab() { return model.model().config().vocab; }

  /// Appends tokens in one pass to each of some sequences; the logits of all of them.
  std::vector<float> pass(std::span<const SequenceTokens> batch) {
    uint32_t rows = 0;
    for (const SequenceTokens& part : batch)
      rows += static_cast<uint32_t>(part.tokens.size());
    model.model().experts().begin_pass({.phase = rows > 1 ? Phase::prefill : Phase::decode, .rows = rows});
    const auto states = model.model().forward(batch, model.scratch(), {});
    REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
    std::vector<float> logits(size_t{rows} * vocab());
    model.model().logits(states->final, model.model().head(), model.scratch(), logits);
    return logits;
  }
  std::vector<float> pass(Sequence& sequence, std::span<const uint32_t> tokens) {
    const SequenceTokens part{.sequence = sequence, .tokens = tokens};
    return pass(std::span(&part, 1));
  }
  /// The tokens of the golden from the sequence's length on, up to `end`.
  std::vector<float> go_on(Sequence& sequence, size_t end) {
    return pass(sequence, std::span(golden.tokens).subspan(sequence.length(), end - sequence.length()));
  }
  /// Logits of the last row of a run of the first `length` tokens at once.
  const std::vector<float>& whole() {
    if (!whole_) {
      Sequence sequence = model.sequence();
      whole_ = go_on(sequence, golden.tokens.size());
    }
    return *whole_;
  }
  /// Whether these are the logits of the golden's rows that end at `end`, bit for bit.
  bool are_same(const std::vector<float>& logits, size_t end) {
    const std::span<const float> wanted = std::span(whole()).subspan(end * vocab() - logits.size(), logits.size());
    return test::first_difference(logits, wanted) == logits.size();
  }

  Golden golden;
  test::RecordingModel model;

 private:
  std::optional<std::vector<float>> whole_;
};

TEST_CASE("window: logits are the references', and so is every likeliest token") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    const test::ErrorReport report = test::compare(rig.whole(), rig.golden.logits.as_double(), rig.vocab());
    MESSAGE(name, ": ", report);
    CHECK(report.not_a_number == 0);
    CHECK(report.nmse <= kMaxNmse);
    const std::vector<float> wanted = rig.golden.logits.as<float>();
    for (size_t row = 0; row < rig.golden.tokens.size(); ++row) {
      const auto likeliest = [&](const std::vector<float>& logits) {
        const auto of_row = std::span(logits).subspan(row * rig.vocab(), rig.vocab());
        return std::ranges::max_element(of_row) - of_row.begin();
      };
      CAPTURE(row);
      CHECK(likeliest(rig.whole()) == likeliest(wanted));
    }
  }
}

TEST_CASE("window: each length by itself, and a prompt that is cut at every point") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    for (const size_t length : kLengths) {
      CAPTURE(length);
      Sequence sequence = rig.model.sequence();
      CHECK(rig.are_same(rig.go_on(sequence, length), length));
    }
    Sequence beginning = rig.model.sequence();
    for (size_t cut = 1; cut < rig.golden.tokens.size(); ++cut) {
      CAPTURE(cut);
      REQUIRE(rig.are_same(rig.go_on(beginning, cut), cut));
      Sequence sequence = rig.model.sequence();
      sequence.extend_from(beginning, static_cast<uint32_t>(cut));
      REQUIRE(rig.are_same(rig.go_on(sequence, rig.golden.tokens.size()), rig.golden.tokens.size()));
    }
  }
}

TEST_CASE("window: token by token, in short waves, on several threads, with experts that are read again and again") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    Rig other(name, {.threads = 3, .wave_rows = 7, .wave_tokens = 20, .slots = 8});
    Sequence sequence = other.model.sequence();
    CHECK(rig.are_same(other.go_on(sequence, 200), 200));
    for (size_t end = 201; end <= rig.golden.tokens.size(); ++end) {
      CAPTURE(end);
      REQUIRE(rig.are_same(other.go_on(sequence, end), end));
    }
  }
}

TEST_CASE("window: twelve sequences in one pass have the bits that each has alone") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name, {.wave_rows = 19});
    std::vector<Sequence> sequences;
    for (size_t i = 0; i < 12; ++i)
      sequences.push_back(rig.model.sequence());
    // Of different lengths, so that blocks end at different rows of the passes.
    const auto length_of = [&](size_t i, size_t round) {
      return std::min(rig.golden.tokens.size(), (i + 1) * 3 + round * (1 + (i + round) % 23));
    };
    for (size_t round = 0; round < 14; ++round) {
      CAPTURE(round);
      std::vector<SequenceTokens> batch;
      std::vector<size_t> ends;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const size_t end = std::max<size_t>(length_of(i, round), sequences[i].length());
        const size_t count = end - sequences[i].length();
        if (count == 0) continue;
        batch.push_back(
            {.sequence = sequences[i], .tokens = std::span(rig.golden.tokens).subspan(sequences[i].length(), count)});
        ends.push_back(end);
      }
      const std::vector<float> logits = rig.pass(batch);
      size_t at = 0;
      for (size_t i = 0; i < batch.size(); ++i) {
        const size_t values = batch[i].tokens.size() * rig.vocab();
        REQUIRE(rig.are_same(
            {logits.begin() + static_cast<ptrdiff_t>(at), logits.begin() + static_cast<ptrdiff_t>(at + values)},
            ends[i]));
        at += values;
      }
    }
  }
}

TEST_CASE(
    "window: a sequence is cut back by up to 128 positions as if it had never been longer, and further to nothing") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    for (const uint32_t back : {1U, 2U, 3U, 4U, 5U, 64U, 127U, 128U}) {
      for (const size_t length : {130U, 200U, 256U, 258U}) {
        CAPTURE(back);
        CAPTURE(length);
        Sequence sequence = rig.model.sequence();
        (void)rig.go_on(sequence, length);
        const auto to = static_cast<uint32_t>(length - back);
        // Other tokens, before it is cut.
        REQUIRE(sequence.cut_point(to) == to);
        sequence.truncate(to);
        (void)rig.pass(sequence, Tokens(back, 5));
        sequence.truncate(to);
        REQUIRE(sequence.length() == to);
        REQUIRE(rig.are_same(rig.go_on(sequence, rig.golden.tokens.size()), rig.golden.tokens.size()));
      }
    }
    Sequence sequence = rig.model.sequence();
    (void)rig.go_on(sequence, 262);
    CHECK(sequence.cut_point(262 - 129 - 128) == 0);
    sequence.truncate(3);
    CHECK(sequence.length() == 0);
    CHECK(rig.are_same(rig.go_on(sequence, 100), 100));
  }
}

TEST_CASE("window: after a pass that was given up a sequence goes on with the same bits, or begins anew") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    std::stop_source stopped;
    stopped.request_stop();
    // Of few tokens, and of more than rings have room for besides what is needed.
    for (const auto& [tokens, is_kept] : {std::pair{60U, true}, {220U, false}}) {
      CAPTURE(tokens);
      Sequence sequence = rig.model.sequence();
      (void)rig.go_on(sequence, 70);
      const SequenceTokens part{.sequence = sequence, .tokens = std::span(rig.golden.tokens).first(tokens)};
      const auto refused = rig.model.model().forward(part, rig.model.scratch(), stopped.get_token());
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind == ErrorKind::cancelled);
      CHECK(sequence.length() == (is_kept ? 70 : 0));
      CHECK(sequence.tokens().size() == sequence.length());
      REQUIRE(rig.are_same(rig.go_on(sequence, rig.golden.tokens.size()), rig.golden.tokens.size()));
    }
  }
}

TEST_CASE("window: a block goes on where it was read at the end, and takes what the cache says") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    for (const size_t length : kLengths) {
      CAPTURE(length);
      Sequence from = rig.model.sequence();
      (void)rig.go_on(from, length);
      const auto block = from.read_block(0, static_cast<uint32_t>(length));
      REQUIRE(block);
      CHECK(block->goes_on);
      Sequence to = rig.model.sequence();
      REQUIRE(to.append(*block, block->end()));
      REQUIRE(rig.are_same(rig.go_on(to, rig.golden.tokens.size()), rig.golden.tokens.size()));
      Sequence copy = rig.model.sequence();
      copy.extend_from(from, static_cast<uint32_t>(length));
      REQUIRE(rig.are_same(rig.go_on(copy, rig.golden.tokens.size()), rig.golden.tokens.size()));
    }
    // In pieces, of which the first cannot be gone on from.
    Sequence from = rig.model.sequence();
    (void)rig.go_on(from, 262);
    const auto first = from.read_block(0, 64);
    const auto second = from.read_block(64, 262 - 64);
    REQUIRE((first && second));
    CHECK_FALSE(first->goes_on);
    CHECK(second->goes_on);
    Sequence to = rig.model.sequence();
    REQUIRE(to.append(*first, 64));
    CHECK(to.cut_point(64) == 0);
    REQUIRE(to.append(*second, 262));
    CHECK(rig.are_same(rig.go_on(to, rig.golden.tokens.size()), rig.golden.tokens.size()));
  }
}

TEST_CASE(
    "window: what a prefix cache gives back has the bits of a fresh run, at points where the whole state was kept") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    const KvIdentity identity{.digest = format::sha256(name), .shape = rig.model.model().kv_shape(), .context = 300};
    PrefixCache cache(identity, {.memory_bytes = 1ULL << 30}, [](const Error& error) { FAIL(error.message); });
    Sequence kept = rig.model.sequence();
    (void)rig.go_on(kept, 100);
    cache.keep(kept);
    (void)rig.go_on(kept, 262);
    cache.keep(kept);
    const std::span<const uint32_t> tokens = rig.golden.tokens;
    const auto restored = [&](size_t length) {
      Sequence sequence = rig.model.sequence();
      const uint32_t found = cache.restore(sequence, tokens.first(length));
      CHECK(found == sequence.length());
      CHECK(rig.are_same(rig.go_on(sequence, tokens.size()), tokens.size()));
      return found;
    };
    CHECK(restored(263) == 262);  // the end of the second
    CHECK(restored(262) == 262);
    CHECK(restored(200) == 192);  // a block's end that was still near
    CHECK(restored(150) == 100);  // the end of the first
    CHECK(restored(99) == 64);
    CHECK(restored(63) == 0);
    // A block's end that was far when it was kept first, and is near in a second conversation.
    Sequence second = rig.model.sequence();
    (void)rig.go_on(second, 128);
    cache.keep(second);
    CHECK(restored(150) == 128);
    // A sequence that holds a part already.
    Sequence sequence = rig.model.sequence();
    (void)rig.go_on(sequence, 80);
    CHECK(cache.restore(sequence, tokens.first(262)) == 262 - 80);
    CHECK(rig.are_same(rig.go_on(sequence, tokens.size()), tokens.size()));
  }
}

TEST_CASE("window: a prefix cache on disk gives the same back to the next process") {
  Rig rig("v4");
  const KvIdentity identity{.digest = format::sha256("v4"), .shape = rig.model.model().kv_shape(), .context = 300};
  const test::TempFolder folder;
  const auto log = [](const Error& error) { FAIL(error.message); };
  const auto open = [&] {
    auto opened =
        PrefixFolder::open(format::posix_file_system(), folder.path(), identity, uint64_t{1'000'000'000}, log);
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().message));
    return PrefixCache::Options{.memory_bytes = 0, .folder = *std::move(opened)};
  };
  {
    PrefixCache cache(identity, open(), log);
    Sequence kept = rig.model.sequence();
    (void)rig.go_on(kept, 100);
    cache.keep(kept);
    (void)rig.go_on(kept, 262);
    cache.keep(kept);
  }
  PrefixCache cache(identity, open(), log);
  for (const auto& [length, wanted] : {std::pair{263U, 262U}, {200U, 192U}, {150U, 100U}, {63U, 0U}}) {
    CAPTURE(length);
    Sequence sequence = rig.model.sequence();
    CHECK(cache.restore(sequence, std::span(rig.golden.tokens).first(length)) == wanted);
    CHECK(rig.are_same(rig.go_on(sequence, rig.golden.tokens.size()), rig.golden.tokens.size()));
  }
}

TEST_CASE("window: a saved chat goes on with the same bits; a file that nothing can go on from is refused") {
  const Golden golden = golden_of("v4");
  LoadOptions options;
  options.context = 300;
  auto loaded = test::load_folder(test::family_folder() / "v4", options);
  REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
  LoadedModel& model = **loaded;
  const std::vector<float> whole = test::logits_of(model, golden.tokens);
  const auto logits = [&](Sequence& sequence, size_t end) {
    const Engine engine = model.engine();
    const auto tokens = std::span(golden.tokens).subspan(sequence.length(), end - sequence.length());
    engine.model.experts().begin_pass({.phase = Phase::prefill, .rows = static_cast<uint32_t>(tokens.size())});
    const auto states = engine.model.forward({.sequence = sequence, .tokens = tokens}, engine.scratch, {});
    REQUIRE(states);
    std::vector<float> rows(tokens.size() * engine.model.config().vocab);
    engine.model.logits(states->final, engine.model.head(), engine.scratch, rows);
    return rows;
  };
  auto first = model.model().make_sequence();
  auto second = model.model().make_sequence();
  REQUIRE((first && second));
  (void)logits(*first, 170);
  const test::TempFolder folder;
  const std::string file = (folder.path() / "chat").string();
  const SavedChat chat{.messages = {{.role = Role::user, .content = "a"}, {.role = Role::assistant, .content = "b"}}};
  REQUIRE(save_chat(file, chat, *first, model, {}));
  const auto read = load_chat(file, *second, model, {});
  REQUIRE_MESSAGE(read, (read ? "" : read.error().message));
  CHECK(second->length() == 170);
  const std::vector<float> rest = logits(*second, golden.tokens.size());
  const std::span<const float> wanted = std::span(whole).last(rest.size());
  CHECK(test::first_difference(rest, wanted) == rest.size());
  // Rows of the first positions alone, read when their end was far.
  (void)logits(*first, golden.tokens.size());
  const auto block = first->read_block(0, 60);
  REQUIRE(block);
  REQUIRE_FALSE(block->goes_on);
  const auto identity = find_identity(model, {});
  REQUIRE(identity);
  REQUIRE(write_kv_file(format::posix_file_system(), file, *block,
                        {.parent = identity->digest, .text = saved_messages(chat)}, *identity));
  const auto refused = load_chat(file, *second, model, {});
  REQUIRE_FALSE(refused);
  CHECK_MESSAGE(refused.error().message.find("no rows to go on from") != std::string::npos, refused.error().message);
  CHECK(second->length() == golden.tokens.size());
}

TEST_CASE("window: a cache of a smaller type is close") {
  for (const std::string& name : kVariants) {
    for (const auto& [dtype, most] : {std::pair{Dtype::bf16, 2e-4}, std::pair{Dtype::f16, 5e-6}}) {
      CAPTURE(name);
      Rig rig(name, {.kv_dtype = dtype, .index_dtype = Dtype::f32});
      const test::ErrorReport report = test::compare(rig.whole(), rig.golden.logits.as_double(), rig.vocab());
      MESSAGE(name, " ", to_string(dtype), ": ", report);
      CHECK(report.nmse <= most);
      CHECK(report.nmse > kMaxNmse);
    }
  }
}

}  // namespace
}  // namespace dspack::runtime::window_golden_test
