// DeepSeek-V4's MTP module against a reference (tests/tools/family/window_reference.py, which DeepSeek's own code
// agrees with). Its state keeps the last residuals only.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/support/window_rig.h"

namespace dspack::runtime::window_mtp_test {
namespace {

using Tokens = std::vector<uint32_t>;

constexpr double kMaxNmse = 1e-10;
// Windows of 24 and 16 positions; four streams and two.
const std::vector<std::string> kVariants = {"v4", "v4-pro"};

struct Rig : test::WindowRig {
  using WindowRig::WindowRig;

  /// Reads all that is pending, with the golden's next tokens; logits [pending, vocab].
  std::vector<float> catch_up() {
    std::vector<float> logits(size_t{state().pending()} * vocab());
    const auto done = mtp().catch_up(
        sequence, scratch(), next_tokens(), MtpHidden::streams, {}, [&](uint32_t first, const kernels::Rows& rows) {
          mtp().logits(rows, scratch(),
                       std::span(logits).subspan(size_t{first} * vocab(), size_t{rows.rows} * vocab()));
        });
    REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
    output = *done;
    return logits;
  }
  /// Logits of one more draft.
  std::vector<float> chain(uint32_t token) {
    const auto next = mtp().chain(sequence, scratch(), output, token, MtpHidden::streams, {});
    REQUIRE_MESSAGE(next, (next ? "" : next.error().message));
    output = *next;
    std::vector<float> logits(vocab());
    mtp().logits(output, scratch(), logits);
    return logits;
  }

  kernels::Rows output;
};

/// Logits of all positions but the last, read in pieces that the residuals have room for.
std::vector<float> whole(Rig& rig, uint32_t piece) {
  std::vector<float> logits;
  const auto end = static_cast<uint32_t>(rig.tokens.size() - 1);
  while (rig.sequence.length() < end) {
    rig.go_on(std::min(end, rig.sequence.length() + piece));
    const std::vector<float> more = rig.catch_up();
    logits.insert(logits.end(), more.begin(), more.end());
  }
  return logits;
}

/// Whether these are the last rows of those, bit for bit.
bool are_last(const std::vector<float>& logits, const std::vector<float>& of) {
  return test::first_difference(logits, std::span(of).last(logits.size())) == logits.size();
}

/// NMSE of these against the last rows of those. Where the module's past begins late its positions are counted from
/// there, so rotations round differently.
double error_to_last(const std::vector<float>& logits, const std::vector<float>& of, uint32_t vocab) {
  const test::ErrorReport report =
      test::compare(logits, std::vector<double>(of.end() - static_cast<ptrdiff_t>(logits.size()), of.end()), vocab);
  CHECK(report.not_a_number == 0);
  return report.nmse;
}

TEST_CASE("window mtp: logits and chains are the reference's, however the module catches up") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    const std::vector<float> all = whole(rig, 100);
    // The golden has every third row.
    std::vector<float> thirds;
    for (size_t row = 2; row + 1 < rig.tokens.size(); row += 3)
      thirds.insert(thirds.end(), all.begin() + static_cast<ptrdiff_t>(row * rig.vocab()),
                    all.begin() + static_cast<ptrdiff_t>((row + 1) * rig.vocab()));
    const test::ErrorReport report =
        test::compare(thirds, rig.golden.stored.at("long.mtp_logits").as_double(), rig.vocab());
    MESSAGE(name, ": ", report);
    CHECK_FALSE(report.count_mismatch);
    CHECK(report.not_a_number == 0);
    CHECK(report.nmse <= kMaxNmse);

    std::vector<float> drafts;
    for (const uint32_t token : rig.golden.ids("long.chain_tokens")) {
      const std::vector<float> row = rig.chain(token);
      drafts.insert(drafts.end(), row.begin(), row.end());
    }
    const test::ErrorReport of_chain =
        test::compare(drafts, rig.golden.stored.at("long.chain_logits").as_double(), rig.vocab());
    MESSAGE(name, ", a chain: ", of_chain);
    CHECK_FALSE(of_chain.count_mismatch);
    CHECK(of_chain.nmse <= kMaxNmse);

    Rig small(name, {.threads = 2, .wave_rows = 7, .wave_tokens = 20, .slots = 8});
    CHECK(are_last(whole(small, 1), all));
  }
}

TEST_CASE("window mtp: the residuals that are kept suffice after a long prompt, and after a cut") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    const std::vector<float> all = whole(rig, 60);
    const uint32_t window = rig.model().config().window->positions;
    const auto end = static_cast<uint32_t>(rig.tokens.size() - 1);
    const auto rows_from = [&](const std::vector<float>& logits, uint32_t row) {
      return std::vector<float>(logits.begin() + static_cast<ptrdiff_t>(size_t{row} * rig.vocab()), logits.end());
    };
    REQUIRE(rig.room() < end);
    for (const uint32_t step : {end, 50U, 1U}) {  // at once, and while the ring turns
      CAPTURE(step);
      Rig late(name);
      while (late.sequence.length() < end)
        late.go_on(std::min(end, late.sequence.length() + step));
      CHECK(late.state().pending() == late.room());
      CHECK(late.state().length() == end - late.room());
      const std::vector<float> logits = late.catch_up();
      // A row is right once a whole window of positions before it was kept.
      CHECK(error_to_last(rows_from(logits, window - 1), all, rig.vocab()) <= kMaxNmse);
      CHECK(error_to_last(logits, all, rig.vocab()) > 1e-4);
    }
    for (const uint32_t back : {1U, 3U, 64U, 128U}) {
      CAPTURE(back);
      for (const bool has_read : {false, true}) {
        CAPTURE(has_read);
        Rig cut(name);
        cut.go_on(end);
        if (has_read) (void)cut.catch_up();
        cut.sequence.truncate(end - back);
        REQUIRE(cut.sequence.length() == end - back);
        CHECK(cut.state().length() + cut.state().pending() == end - back);
        cut.go_on(end);
        const std::vector<float> logits = cut.catch_up();
        const uint32_t row = has_read ? 0 : static_cast<uint32_t>(logits.size() / rig.vocab()) - back;
        CHECK(error_to_last(rows_from(logits, row), all, rig.vocab()) <= kMaxNmse);
      }
    }
    // Further back than the main model can go: both begin anew.
    Rig anew(name);
    anew.go_on(end);
    (void)anew.catch_up();
    anew.sequence.truncate(3);
    CHECK(anew.sequence.length() == 0);
    CHECK(anew.state().length() == 0);
    CHECK(are_last(whole(anew, 90), all));
  }
}

TEST_CASE("window mtp: drafts that are dropped, an interruption and another sequence leave no trace") {
  for (const std::string& name : kVariants) {
    CAPTURE(name);
    Rig rig(name);
    const std::vector<float> all = whole(rig, 60);
    const auto end = static_cast<uint32_t>(rig.tokens.size() - 1);
    std::stop_source stop;
    stop.request_stop();
    Rig other(name);
    // Over the borders of blocks of 4 and of 128 positions.
    for (const uint32_t length : {3U, 4U, 5U, 126U, 127U, 128U, 129U, 130U, end}) {
      CAPTURE(length);
      other.go_on(length);
      const uint32_t pending = other.state().pending();
      const auto refused = other.mtp().catch_up(other.sequence, other.scratch(), other.next_tokens(),
                                                MtpHidden::streams, stop.get_token());
      REQUIRE_FALSE(refused);
      CHECK(refused.error().kind == ErrorKind::cancelled);
      REQUIRE(other.state().pending() == pending);
      const std::vector<float> logits = other.catch_up();
      CHECK(are_last(logits, {all.begin(), all.begin() + static_cast<ptrdiff_t>(size_t{length} * rig.vocab())}));
      (void)other.chain(5);
      (void)other.chain(6);
      other.state().truncate(length);
      // Drafts that the main model refuses.
      other.pass(Tokens{7, 8, 9, 10, 11});
      other.sequence.truncate(length);
      REQUIRE(other.sequence.length() == length);
      REQUIRE(other.state().length() == length);
      CHECK(other.state().pending() == 0);
    }
    // A sequence that takes over another's, with and without pending positions.
    for (const uint32_t read : {0U, 100U, 180U}) {
      CAPTURE(read);
      Rig from(name);
      if (read > 0) {
        from.go_on(read);
        (void)from.catch_up();
      }
      from.go_on(200);
      Sequence copy = from.RecordingModel::sequence(Model::Drafting::mtp);
      copy.extend_from(from.sequence, 190);
      std::swap(copy, from.sequence);
      from.go_on(end);
      const std::vector<float> logits = from.catch_up();
      const std::vector<float> last(logits.end() - static_cast<ptrdiff_t>(size_t{60} * rig.vocab()), logits.end());
      CHECK(error_to_last(last, all, rig.vocab()) <= kMaxNmse);
    }
  }
}

TEST_CASE("window mtp: greedy and sampled text is that without drafts, for each number of drafts") {
  constexpr std::optional<uint32_t> kNumbers[] = {1U, 2U, 3U, 4U, 5U};
  for (const std::string& name : kVariants)
    test::check_drafted_text(name, kNumbers);
}

}  // namespace
}  // namespace dspack::runtime::window_mtp_test
