// Windows over a text, and the sums of a perplexity. The figures of a whole run are in tests/e2e/test_validation.py.
#include "runtime/validation/perplexity.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::perplexity_test {
namespace {

TEST_CASE("perplexity: windows score every token once, and none without something before it") {
  for (const bool has_prefix : {true, false}) {
    for (uint64_t tokens = 0; tokens < 30; ++tokens) {
      for (uint64_t length = 1; length < 12; ++length) {
        for (uint64_t stride = 1; stride <= length; ++stride) {
          CAPTURE(tokens);
          CAPTURE(length);
          CAPTURE(stride);
          std::vector<int> scored(tokens);
          for (const TextWindow& window : text_windows(tokens, length, stride, has_prefix)) {
            REQUIRE(window.end <= tokens);
            CHECK(window.end - window.begin <= length);
            CHECK(window.begin % stride == 0);
            CHECK(window.begin <= window.scored_from);
            CHECK(window.scored_from < window.end);
            if (!has_prefix) CHECK(window.begin < window.scored_from);
            for (uint64_t at = window.scored_from; at < window.end; ++at)
              ++scored[at];
          }
          for (uint64_t at = 0; at < tokens; ++at) {
            const bool first_of_window = at == 0 || (stride == length && at % length == 0);
            CHECK(scored[at] == (has_prefix || !first_of_window ? 1 : 0));
          }
        }
      }
    }
  }
}

TEST_CASE("perplexity: mean and errors") {
  Surprise surprise;
  for (const double nats : {1.0, 2.0, 3.0, 6.0})
    surprise.add(nats);
  CHECK(surprise.mean() == doctest::Approx(3));
  CHECK(surprise.mean_error() == doctest::Approx(std::sqrt((4 + 1 + 0 + 9) / 3.0 / 4)));
  CHECK(surprise.perplexity() == doctest::Approx(std::exp(3.0)));
  CHECK(surprise.perplexity_error() == doctest::Approx(std::exp(3.0) * surprise.mean_error()));
  CHECK(surprise_of(std::vector<float>{1000, 1000}, 1) == doctest::Approx(std::log(2.0)));
  CHECK(surprise_of(std::vector<float>{0, -1000}, 1) == doctest::Approx(1000));
}

TEST_CASE("perplexity: a window's tokens are scored by the logits before them") {
  test::RecordingModel rig(test::tiny_folder());
  Session session = rig.session();
  const std::vector<uint32_t> text = test::golden_prompts().front().logits_tokens;
  const uint32_t vocab = session.vocab();
  std::vector<float> logits;
  REQUIRE(session.logits(
      text, 0, [&](std::span<const float> rows) { logits.insert(logits.end(), rows.begin(), rows.end()); }, {}));
  double wanted = 0;
  for (size_t at = 1; at < text.size(); ++at)
    wanted += surprise_of(std::span(logits).subspan((at - 1) * vocab, vocab), text[at]);
  // The first token as prefix, or as a text's first token that nothing stands before: the same sum.
  const std::span<const uint32_t> all(text);
  for (const size_t prefix : {size_t{0}, size_t{1}}) {
    const auto surprise = measure_surprise(session,
                                           {.tokens = all.subspan(prefix),
                                            .prefix = all.first(prefix),
                                            .windows = text_windows(text.size() - prefix, 128, 128, prefix > 0)},
                                           [](const Surprise&) {}, {});
    REQUIRE(surprise);
    CHECK(surprise->tokens == text.size() - 1);
    CHECK(surprise->sum == doctest::Approx(wanted).epsilon(1e-12));
  }
  CHECK_FALSE(
      measure_surprise(session, {.tokens = all.first(1), .prefix = {}, .windows = {}}, [](const Surprise&) {}, {}));
}

}  // namespace
}  // namespace dspack::runtime::perplexity_test
