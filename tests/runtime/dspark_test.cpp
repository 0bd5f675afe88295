// DSpark's blocks of drafts against a reference (tests/tools/family/window_reference.py).
#include "runtime/model/dspark.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/runtime/support/window_rig.h"

namespace dspack::runtime::dspark_test {
namespace {

using Tokens = std::vector<uint32_t>;

constexpr double kMaxNmse = 1e-10;
const std::string kVariant = "v4-dspark";

struct Rig : test::WindowRig {
  explicit Rig(const test::RigOptions& options = {})
      : WindowRig(kVariant, options), positions(golden.ids("long.block_positions")) {}

  void catch_up() {
    const auto done = drafter().catch_up(sequence, scratch(), next_tokens(), MtpHidden::stream_means, {});
    REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
    CHECK(state().pending() == 0);
  }
  /// Logits of drafts after the golden's next token, each as if those before it were the tokens that follow.
  std::vector<float> draft(uint32_t count = 5, double least_chance = 0) {
    const uint32_t length = sequence.length();
    std::vector<float> logits;
    Tokens chosen;
    const DraftModule::Choose choose = [&](const kernels::Rows& scores) -> Result<uint32_t> {
      REQUIRE(scores.rows == 1);
      std::vector<float> row(vocab());
      queue().download(std::as_writable_bytes(std::span(row)), scores.data);
      queue().synchronize();
      logits.insert(logits.end(), row.begin(), row.end());
      const size_t at = length + 1 + chosen.size();
      chosen.push_back(at < tokens.size() ? tokens[at] : 0);
      return chosen.back();
    };
    const auto drafts = drafter().draft({.sequence = sequence,
                                         .scratch = scratch(),
                                         .begin = {},
                                         .last = tokens[length],
                                         .count = count,
                                         .hidden = MtpHidden::stream_means,
                                         .least_chance = least_chance,
                                         .choose = choose,
                                         .stop = {}});
    REQUIRE_MESSAGE(drafts, (drafts ? "" : drafts.error().message));
    CHECK(*drafts == chosen);
    CHECK(state().length() == length);  // the block leaves nothing
    return logits;
  }
  /// Logits of all blocks of the golden.
  std::vector<float> all() {
    std::vector<float> logits;
    for (const uint32_t position : positions) {
      go_on(position + 1);
      catch_up();
      const std::vector<float> more = draft();
      logits.insert(logits.end(), more.begin(), more.end());
    }
    return logits;
  }
  [[nodiscard]] size_t row_of(size_t block) { return block * 5 * vocab(); }

  Tokens positions;
};

/// NMSE of a block's logits against the golden's.
double error_of(Rig& rig, std::span<const float> logits, size_t block) {
  const std::vector<double> wanted = rig.golden.stored.at("long.block_logits").as_double();
  const auto begin = wanted.begin() + static_cast<ptrdiff_t>(rig.row_of(block));
  const test::ErrorReport report =
      test::compare(logits, std::vector<double>(begin, begin + static_cast<ptrdiff_t>(logits.size())), rig.vocab());
  CHECK(report.not_a_number == 0);
  return report.nmse;
}

TEST_CASE("dspark: the logits of every draft are the reference's, however the stages catch up") {
  Rig rig;
  const std::vector<float> logits = rig.all();
  const test::ErrorReport report =
      test::compare(logits, rig.golden.stored.at("long.block_logits").as_double(), rig.vocab());
  MESSAGE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  CHECK(report.nmse <= kMaxNmse);

  Rig small({.threads = 2, .wave_rows = 7, .wave_tokens = 20, .slots = 8});
  CHECK(test::first_difference(small.all(), logits) == logits.size());
}

TEST_CASE("dspark: a draft ends where its chance, by the module's estimate, is too low") {
  Rig rig;
  const std::vector<double> confidence = rig.golden.stored.at("long.block_confidence").as_double();
  std::set<size_t> lengths;
  for (size_t block = 0; block < rig.positions.size(); ++block) {
    rig.go_on(rig.positions[block] + 1);
    rig.catch_up();
    for (const double least : {1e-9, 0.05, 0.2, 0.5, 0.99}) {
      CAPTURE(block);
      CAPTURE(least);
      double chance = 1;
      size_t wanted = 0;
      double nearest = 1;  // to the threshold, as a share of it
      while (wanted < 5) {
        chance /= 1 + std::exp(-confidence[block * 5 + wanted]);
        if (wanted > 0) nearest = std::min(nearest, std::abs(chance / least - 1));
        if (wanted > 0 && chance < least) break;
        ++wanted;
      }
      REQUIRE(nearest > 1e-4);
      CHECK(rig.draft(5, least).size() == wanted * rig.vocab());
      lengths.insert(wanted);
    }
  }
  CHECK(lengths.size() > 2);
}

TEST_CASE("dspark: what is kept of the main model suffices after a long prompt, and after a cut") {
  Rig rig;
  const size_t last = rig.positions.size() - 1;
  const uint32_t end = rig.positions[last] + 1;
  REQUIRE(rig.room() < end);
  for (const uint32_t step : {end, 50U, 1U}) {  // at once, and while the ring turns
    CAPTURE(step);
    Rig late;
    while (late.sequence.length() < end)
      late.go_on(std::min(end, late.sequence.length() + step));
    CHECK(late.state().pending() == late.room());
    late.catch_up();
    CHECK(error_of(late, late.draft(), last) <= kMaxNmse);
  }
  for (const uint32_t back : {1U, 3U, 64U, 120U}) {
    CAPTURE(back);
    for (const bool has_read : {false, true}) {
      CAPTURE(has_read);
      Rig cut;
      cut.go_on(end);
      if (has_read) cut.catch_up();
      cut.sequence.truncate(end - back);
      REQUIRE(cut.sequence.length() == end - back);
      CHECK(cut.state().length() + cut.state().pending() == end - back);
      cut.go_on(end);
      cut.catch_up();
      CHECK(error_of(cut, cut.draft(), last) <= kMaxNmse);
    }
  }
  // Further back than the main model can go: both begin anew.
  Rig anew;
  anew.go_on(end);
  anew.catch_up();
  anew.sequence.truncate(3);
  CHECK(anew.sequence.length() == 0);
  CHECK(anew.state().length() == 0);
  anew.go_on(rig.positions[3] + 1);
  anew.catch_up();
  CHECK(error_of(anew, anew.draft(), 3) <= kMaxNmse);
}

TEST_CASE("dspark: drafts that are refused, an interruption and another sequence leave no trace") {
  Rig rig;
  const std::vector<float> all = rig.all();
  std::stop_source stop;
  stop.request_stop();
  Rig other;
  for (size_t block = 0; block < other.positions.size(); ++block) {
    CAPTURE(block);
    const uint32_t length = other.positions[block] + 1;
    other.go_on(length);
    const uint32_t pending = other.state().pending();
    const auto refused = other.drafter().catch_up(other.sequence, other.scratch(), other.next_tokens(),
                                                  MtpHidden::stream_means, stop.get_token());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::cancelled);
    REQUIRE(other.state().pending() == pending);
    other.catch_up();
    const std::vector<float> logits = other.draft();
    CHECK(test::first_difference(logits, std::span(all).subspan(rig.row_of(block), logits.size())) == logits.size());
    const DraftModule::Choose never = [](const kernels::Rows&) -> Result<uint32_t> {
      FAIL_CHECK("chosen");
      return 0U;
    };
    const auto ended = other.drafter().draft({.sequence = other.sequence,
                                              .scratch = other.scratch(),
                                              .begin = {},
                                              .last = 1,
                                              .count = 5,
                                              .hidden = MtpHidden::stream_means,
                                              .choose = never,
                                              .stop = stop.get_token()});
    REQUIRE_FALSE(ended);
    CHECK(other.state().length() == length);
    // Drafts that the main model refuses.
    other.pass(Tokens{7, 8, 9, 10, 11});
    other.sequence.truncate(length);
    REQUIRE(other.sequence.length() == length);
    CHECK(other.state().length() == length);
    CHECK(other.state().pending() == 0);
  }
  // A sequence that takes over another's, with and without pending positions.
  for (const uint32_t read : {0U, 100U, 180U}) {
    CAPTURE(read);
    Rig from;
    if (read > 0) {
      from.go_on(read);
      from.catch_up();
    }
    from.go_on(200);
    Sequence copy = from.RecordingModel::sequence(Model::Drafting::mtp);
    copy.extend_from(from.sequence, 190);
    std::swap(copy, from.sequence);
    const size_t block = 13;
    REQUIRE(from.positions[block] == 200);
    from.go_on(201);
    from.catch_up();
    CHECK(error_of(from, from.draft(), block) <= kMaxNmse);
  }
}

TEST_CASE("dspark: fewer drafts than a block are its first, and a block near the end of the context is shorter") {
  Rig rig;
  rig.go_on(129);
  rig.catch_up();
  const std::vector<float> whole = rig.draft();
  for (const uint32_t count : {1U, 2U, 4U}) {
    const std::vector<float> first = rig.draft(count);
    REQUIRE(first.size() == size_t{count} * rig.vocab());
    CHECK(test::first_difference(first, std::span(whole).first(first.size())) == first.size());
  }
  rig.tokens.resize(Rig::kContext + 8, 3);
  rig.go_on(250);
  rig.catch_up();
  for (const uint32_t length : {Rig::kContext - 3, Rig::kContext - 1}) {
    rig.go_on(length);
    rig.catch_up();
    CHECK(rig.draft().size() == size_t{Rig::kContext - length} * rig.vocab());
  }
}

TEST_CASE("dspark: greedy and sampled text is that without drafts, for each number of drafts") {
  constexpr std::optional<uint32_t> kNumbers[] = {1U, 2U, 3U, 4U, 5U, std::nullopt};
  test::check_drafted_text(kVariant, kNumbers);
}

}  // namespace
}  // namespace dspack::runtime::dspark_test
