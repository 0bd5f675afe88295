// The MTP module against an independent implementation (tests/tools/tiny_v3/reference.py), and its bookkeeping.
#include "runtime/model/mtp.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/weights/scratch.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::mtp_test {
namespace {

using test::GoldenPrompt;

constexpr double kMaxNmse = 1e-8;

/// A model with its module, and a sequence that may draft.
struct Rig : test::RecordingModel {
  explicit Rig(const test::RigOptions& options = {})
      : test::RecordingModel(test::tiny_folder(), options), sequence(RecordingModel::sequence(Model::Drafting::mtp)) {}
  [[nodiscard]] MtpState& state() { return *sequence.mtp(); }

  Sequence sequence;
  kernels::Rows last;  // output of the module
};

void pass(Rig& rig, std::span<const uint32_t> tokens) {
  const auto states = rig.model().forward({.sequence = rig.sequence, .tokens = tokens}, rig.scratch(), {});
  REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
}

/// Reads all that is pending; logits [pending, vocab].
std::vector<float> caught_up(Rig& rig, std::span<const uint32_t> next, MtpHidden hidden = MtpHidden::post_norm) {
  const size_t vocab = rig.model().config().vocab;
  std::vector<float> logits(next.size() * vocab);
  const auto done =
      rig.mtp().catch_up(rig.sequence, rig.scratch(), next, hidden, {}, [&](uint32_t first, const kernels::Rows& rows) {
        rig.mtp().logits(rows, rig.scratch(), std::span(logits).subspan(first * vocab, rows.rows * vocab));
      });
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  rig.last = *done;
  return logits;
}

TEST_CASE("mtp: logits of every golden prompt are the reference's, at once and in pieces") {
  const auto stored = test::read_safetensors(test::golden_folder() / "mtp.safetensors");
  // The second rig's chunks and waves cut the catching up; the values must not depend on it.
  Rig rig;
  Rig small({.threads = 2, .max_rows = 7, .wave_rows = 3, .wave_tokens = 5});
  for (const GoldenPrompt& prompt : test::golden_prompts()) {
    CAPTURE(prompt.name);
    REQUIRE(stored.contains(prompt.name));
    const std::span<const uint32_t> tokens = prompt.logits_tokens;
    const auto rows = static_cast<uint32_t>(tokens.size() - 1);
    rig.sequence.truncate(0);
    pass(rig, tokens.first(rows));
    CHECK(rig.state().pending() == rows);
    const std::vector<float> got = caught_up(rig, tokens.subspan(1));
    CHECK(rig.state().pending() == 0);
    CHECK(rig.state().length() == rows);
    const test::ErrorReport report = test::compare(got, stored.at(prompt.name).as_double(), rig.model().config().vocab);
    MESSAGE(prompt.name, ": ", report);
    CHECK_FALSE(report.count_mismatch);
    CHECK(report.not_a_number == 0);
    CHECK(report.nmse <= kMaxNmse);

    small.sequence.truncate(0);
    for (uint32_t done = 0; done < rows; done += 7)
      pass(small, tokens.subspan(done, std::min(7U, rows - done)));
    CHECK(test::first_difference(caught_up(small, tokens.subspan(1)), got) == got.size());
  }
}

TEST_CASE(
    "mtp: catching up token by token, after cuts, or a second time gives the same; another hidden state does not") {
  const GoldenPrompt prompt = test::golden_prompts().front();
  const std::span<const uint32_t> tokens = prompt.logits_tokens;
  const auto rows = static_cast<uint32_t>(tokens.size() - 1);
  Rig rig;
  const size_t vocab = rig.model().config().vocab;
  pass(rig, tokens.first(rows));
  const std::vector<float> all = caught_up(rig, tokens.subspan(1));

  for (const MtpHidden hidden : {MtpHidden::pre_norm, MtpHidden::post_norm}) {
    rig.sequence.truncate(0);
    pass(rig, tokens.first(rows));
    const bool is_same = test::first_difference(caught_up(rig, tokens.subspan(1), hidden), all) == all.size();
    CHECK(is_same == (hidden == MtpHidden::post_norm));
  }

  rig.sequence.truncate(0);
  for (uint32_t i = 0; i < rows; ++i) {
    pass(rig, tokens.subspan(i, 1));
    if (i % 3 == 2) {
      // A chain of drafts, and a pass over tokens that are then thrown away: neither leaves a trace.
      caught_up(rig, tokens.subspan(rig.state().length() + 1, rig.state().pending()));
      const auto output = rig.mtp().chain(rig.sequence, rig.scratch(), rig.last, 5, MtpHidden::post_norm, {});
      REQUIRE(output);
      REQUIRE(rig.mtp().chain(rig.sequence, rig.scratch(), *output, 6, MtpHidden::post_norm, {}));
      rig.state().truncate(i + 1);
      CHECK(rig.state().length() == i + 1);
      pass(rig, std::vector<uint32_t>{7, 8, 9});
      rig.sequence.truncate(i + 1);
      CHECK(rig.state().pending() == 0);
    }
  }
  if (rig.state().pending() == 0) {
    rig.sequence.truncate(rows - 1);
    pass(rig, tokens.subspan(rows - 1, 1));
  }
  const uint32_t left = rig.state().pending();
  const std::vector<float> last = caught_up(rig, tokens.subspan(rows - left + 1, left));
  const std::vector<float> wanted(all.end() - static_cast<ptrdiff_t>(left * vocab), all.end());
  CHECK(test::first_difference(last, wanted) == wanted.size());
}

TEST_CASE("mtp: an interruption leaves the module as it was") {
  const GoldenPrompt prompt = test::golden_prompts().front();
  const std::span<const uint32_t> tokens = prompt.logits_tokens;
  Rig rig;
  pass(rig, tokens.first(9));
  std::stop_source stop;
  stop.request_stop();
  const auto refused =
      rig.mtp().catch_up(rig.sequence, rig.scratch(), tokens.subspan(1, 9), MtpHidden::post_norm, stop.get_token());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::cancelled);
  CHECK(rig.state().pending() == 9);
  CHECK(rig.state().length() == 0);
  const std::vector<float> got = caught_up(rig, tokens.subspan(1, 9));
  Rig fresh;
  pass(fresh, tokens.first(9));
  CHECK(test::first_difference(caught_up(fresh, tokens.subspan(1, 9)), got) == got.size());
}

TEST_CASE("mtp: embedding and head are the main model's where they are equal") {
  Rig rig;
  const uint64_t before = rig.access().bytes_read(WeightPurpose::always_needed);
  CHECK(rig.mtp().shares_head());
  CHECK_FALSE(rig.mtp().shares_embedding());  // no digests to compare: its rows are read where they lie, as rows are
  CHECK(rig.mtp().bytes_read() == rig.access().bytes_read(WeightPurpose::always_needed) - before);
  // One layer's attention, router and shared expert, and eh_proj in BF16; no table of 1152 x 192.
  CHECK(rig.mtp().weight_bytes() < 1'000'000);
}

}  // namespace
}  // namespace dspack::runtime::mtp_test
