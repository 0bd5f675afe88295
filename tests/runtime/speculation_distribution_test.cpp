// Above temperature 0: over seeds that follow one another, answers that come of drafts are distributed as the model
// says.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/generate/session.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::speculation_distribution_test {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr size_t kTokens = 3;  // the prompt's pass gives the first, one pass over two drafts the others

Sampler sampler_of(const SamplerOptions& options) {
  auto sampler = Sampler::make(options);
  REQUIRE(sampler);
  return *sampler;
}

/// The likeliest answers of kTokens tokens with their probabilities: at each place, the `width` likeliest tokens.
std::map<Tokens, double> likeliest(Session& session, const Tokens& prompt, const Sampler& sampler, size_t width) {
  std::map<Tokens, double> answers = {{{}, 1.0}};
  for (size_t place = 0; place < kTokens; ++place) {
    std::map<Tokens, double> longer;
    for (const auto& [answer, probability] : answers) {
      Tokens tokens = prompt;
      tokens.insert(tokens.end(), answer.begin(), answer.end());
      std::vector<float> last;
      REQUIRE(session.logits(tokens, 0,
                             [&](std::span<const float> rows) { last.assign(rows.end() - 1152, rows.end()); }, {}));
      auto candidates = sampler.candidates(last, tokens);
      REQUIRE(candidates);
      std::ranges::sort(*candidates, std::greater{}, &kernels::LikelyToken::weight);
      double sum = 0;
      for (const kernels::LikelyToken& candidate : *candidates)
        sum += static_cast<double>(candidate.weight);
      for (size_t i = 0; i < std::min(width, candidates->size()); ++i) {
        Tokens next = answer;
        next.push_back((*candidates)[i].token);
        longer[next] = probability * static_cast<double>((*candidates)[i].weight) / sum;
      }
    }
    answers = std::move(longer);
  }
  return answers;
}

struct Fit {
  double chi_square = 0;
  double degrees = 0;
  /// Five standard deviations above what is expected: by chance once in some ten thousand seeds.
  [[nodiscard]] bool is_rejected() const { return chi_square > degrees + 5 * std::sqrt(2 * degrees); }
};

/// Pearson's statistic; what is expected less than 5 times is put together with all answers that are not listed.
Fit fit(const std::map<Tokens, double>& expected, const std::map<Tokens, double>& counts, double total) {
  Fit result;
  double rest_expected = total;
  double rest_counted = total;
  for (const auto& [answer, probability] : expected) {
    const double mean = probability * total;
    if (mean < 5) continue;
    const auto found = counts.find(answer);
    const double counted = found == counts.end() ? 0 : found->second;
    result.chi_square += (counted - mean) * (counted - mean) / mean;
    result.degrees += 1;
    rest_expected -= mean;
    rest_counted -= counted;
  }
  if (rest_expected >= 5) {
    result.chi_square += (rest_counted - rest_expected) * (rest_counted - rest_expected) / rest_expected;
  } else {
    result.degrees -= 1;
  }
  return result;
}

struct Samples {
  std::map<Tokens, double> counts;
  SpeculationStats stats;
};

Samples draw_answers(test::RecordingModel& rig, const Tokens& prompt, SamplerOptions options, int count) {
  Session session = rig.session(SpeculationOptions{.drafts = 2});
  Samples samples;
  for (int i = 0; i < count; ++i, ++options.seed) {
    Sampler sampler = sampler_of(options);
    const auto answer = session.generate(prompt, {.max_tokens = kTokens + 1, .end_tokens = {}}, sampler,
                                         [](uint32_t) { return true; }, {});
    REQUIRE(answer);
    REQUIRE(answer->tokens.size() == kTokens + 1);
    samples.counts[{answer->tokens.begin(), answer->tokens.begin() + kTokens}] += 1;
  }
  samples.stats = session.speculator()->stats();
  return samples;
}

struct Case {
  const char* text;
  size_t length;  // of the prompt
  SamplerOptions options;
  double degrees;  // at least: how many kinds of answers are told apart
  bool is_sharp;   // enough is told apart for the error below to show
};

TEST_CASE("speculation: answers of three tokens are as frequent as the model says") {
  constexpr int kSamples = 500;
  const auto prompts = test::golden_prompts();
  test::RecordingModel rig(test::tiny_folder(), {.context = 64});
  for (const auto& [text, length, options, degrees, is_sharp] :
       {Case{"system", 8, {.temperature = 1.3, .seed = 1}, 12, false},
        Case{"tale-middle", 11, {.temperature = 2.5, .top_k = 12, .top_p = 0.95, .seed = 3}, 3, true}}) {
    Tokens prompt = std::ranges::find(prompts, text, &test::GoldenPrompt::name)->logits_tokens;
    prompt.resize(length);
    CAPTURE(std::string(text));
    const Samples samples = draw_answers(rig, prompt, options, kSamples);
    Session plain = rig.session();
    const auto exact = likeliest(plain, prompt, sampler_of(options), 12);
    const Fit right = fit(exact, samples.counts, kSamples);
    MESSAGE("chi-square ", right.chi_square, " with ", right.degrees, " degrees of freedom; ", samples.stats.accepted,
            " of ", samples.stats.drafted, " drafts accepted");
    CHECK_FALSE(right.is_rejected());
    CHECK(right.degrees >= degrees);
    // Drafts were accepted often, and often not.
    CHECK(samples.stats.accepted > 150);
    CHECK(samples.stats.drafted - samples.stats.accepted > 150);
    if (!is_sharp) continue;

    // The same statistic finds a small error: the samples as a slightly other temperature would expect them.
    SamplerOptions other = options;
    other.temperature *= 0.85;
    CHECK(fit(likeliest(plain, prompt, sampler_of(other), 12), samples.counts, kSamples).is_rejected());
  }
}

}  // namespace
}  // namespace dspack::runtime::speculation_distribution_test
