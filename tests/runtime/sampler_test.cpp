#include "runtime/generate/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/sample_noise.h"
#include "kernels/sample_weights.h"
#include "tests/runtime/text/golden.h"

namespace dspack::sampler_test {

using namespace dspack;
using namespace dspack::runtime;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Sampler sampler(const SamplerOptions& options) {
  auto made = Sampler::make(options);
  REQUIRE(made.has_value());
  return *std::move(made);
}

/// Logits whose softmax at temperature 1 is `probabilities`.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities)
    logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

/// What is drawn from.
std::vector<uint32_t> candidates_of(const Sampler& sampler, const std::vector<float>& logits,
                                    const std::vector<uint32_t>& context) {
  const auto candidates = sampler.candidates(logits, context);
  REQUIRE(candidates.has_value());
  std::vector<uint32_t> tokens;
  for (const kernels::LikelyToken& candidate : *candidates)
    if (candidate.weight > 0) tokens.push_back(candidate.token);
  return tokens;
}

std::vector<uint32_t> candidates_of(const SamplerOptions& options, const std::vector<float>& logits) {
  return candidates_of(sampler(options), logits, {});
}

/// A context of so many tokens, each with noise of its own.
std::vector<uint32_t> context_of(size_t tokens) {
  return std::vector<uint32_t>(tokens, 1);
}

}  // namespace

TEST_CASE("sampler: greedy takes the highest logit, the lowest index among equals") {
  Sampler greedy = sampler({});
  CHECK(*greedy.sample(std::vector<float>{1, 3, 2, 3}, {}) == 1);
  CHECK(*greedy.sample(std::vector<float>{-kInfinity, -5, -kInfinity}, {}) == 1);
  CHECK(*greedy.sample(std::vector<float>{0, -0.0f}, {}) == 0);
}

TEST_CASE("sampler: NaN, +infinity, nothing, and nothing possible are errors") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double temperature : {0.0, 1.0}) {
    Sampler any = sampler({.temperature = temperature});
    for (const auto& logits : {std::vector<float>{1, nan}, {nan, 1}, {1, kInfinity}, {}, {-kInfinity, -kInfinity}}) {
      const auto token = any.sample(logits, {});
      REQUIRE_FALSE(token.has_value());
      CHECK(token.error().kind == (logits.empty() ? ErrorKind::invalid : ErrorKind::corrupt));
    }
  }
}

TEST_CASE("sampler: options out of range are refused") {
  const double nan = std::nan("");
  for (const double temperature : {-0.1, nan, std::numeric_limits<double>::infinity()}) {
    CHECK_FALSE(Sampler::make({.temperature = temperature}).has_value());
  }
  for (const double top_p : {0.0, -1.0, 1.0001, nan})
    CHECK_FALSE(Sampler::make({.top_p = top_p}).has_value());
  CHECK(Sampler::make({.temperature = 1e-300, .top_p = 1e-300}).has_value());
  for (const double min_p : {-0.1, 1.1, nan})
    CHECK_FALSE(Sampler::make({.min_p = min_p}).has_value());
  for (const double penalty : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()})
    CHECK_FALSE(Sampler::make({.repetition_penalty = penalty}).has_value());
  for (const double bias : {nan, std::numeric_limits<double>::infinity()})
    CHECK_FALSE(Sampler::make({.logit_bias = {{1, bias}}}).has_value());
}

TEST_CASE("sampler: the nucleus is the smallest set that reaches top-p") {
  const auto logits = logits_of({0.1, 0.4, 0.2, 0.3});
  const auto nucleus = [&](double top_p) { return candidates_of({.temperature = 1, .top_p = top_p}, logits); };
  using Tokens = std::vector<uint32_t>;
  CHECK(nucleus(1e-9) == Tokens{1});
  CHECK(nucleus(0.39) == Tokens{1});
  CHECK(nucleus(0.41) == Tokens{1, 3});
  CHECK(nucleus(0.71) == Tokens{1, 3, 2});
  CHECK(nucleus(0.91) == Tokens{1, 3, 2, 0});
  CHECK(nucleus(1) == Tokens{0, 1, 2, 3});
}

TEST_CASE("sampler: equal probabilities enter the nucleus by index, and a sum of exactly top-p is enough") {
  const std::vector<float> logits(4, 0.5f);
  CHECK(candidates_of({.temperature = 1, .top_p = 0.5}, logits) == std::vector<uint32_t>{0, 1});
  CHECK(candidates_of({.temperature = 1, .top_p = 0.51}, logits) == std::vector<uint32_t>{0, 1, 2});
}

TEST_CASE("sampler: weights follow the temperature") {
  const auto candidates = sampler({.temperature = 0.5}).candidates(logits_of({0.2, 0.8}), {});
  REQUIRE(candidates.has_value());
  CHECK((*candidates)[1].weight == kernels::kHeaviest);
  CHECK(static_cast<double>((*candidates)[0].weight) ==
        doctest::Approx(0.04 / 0.64 * static_cast<double>(kernels::kHeaviest)));
  CHECK(candidates_of({.temperature = 1e-300}, {1, 2, 1}) == std::vector<uint32_t>{1});
}

TEST_CASE("sampler: excluded tokens are never drawn") {
  const Sampler random = sampler({.temperature = 1, .seed = 1});
  for (size_t i = 0; i < 1000; ++i)
    CHECK(*random.sample(std::vector<float>{-kInfinity, 0, -kInfinity, 0}, context_of(i)) % 2 == 1);
}

TEST_CASE("sampler: seed and position alone choose among equals, on every platform") {
  const std::vector<float> logits(10, 0);
  const auto draw = [&](uint64_t seed) {
    const Sampler random = sampler({.temperature = 1, .seed = seed});
    std::vector<uint32_t> tokens;
    for (size_t i = 0; i < 12; ++i)
      tokens.push_back(*random.sample(logits, context_of(i)));
    return tokens;
  };
  // Of equals the one that arrives first: whose number of Philox4x32-10 is the highest, computed apart in Python.
  CHECK(draw(42) == std::vector<uint32_t>{4, 1, 4, 2, 4, 2, 0, 2, 5, 6, 1, 4});
  CHECK(draw(43) == std::vector<uint32_t>{9, 1, 2, 2, 3, 5, 4, 0, 3, 1, 7, 7});
  // Whoever asks, in whatever order.
  const Sampler random = sampler({.temperature = 1, .seed = 42});
  for (size_t i = 12; i-- > 0;)
    CHECK(*random.sample(logits, context_of(i)) == draw(42)[i]);
}

TEST_CASE("sampler: frequencies follow the probabilities, over positions and over seeds") {
  const auto logits = logits_of({0.5, 0.3, 0.17, 0.03});
  constexpr size_t kSeeds = 100;
  constexpr size_t kPositions = 1000;
  std::vector<double> counts(4);
  const std::vector<uint32_t> context = context_of(kPositions);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Sampler random = sampler({.temperature = 1, .top_p = 0.95, .seed = seed});
    for (size_t i = 0; i < kPositions; ++i)
      counts[*random.sample(logits, std::span(context).first(i))] += 1.0 / (kSeeds * kPositions);
  }
  // Five standard deviations of a frequency are at most 5 * sqrt(0.25 / 100000) = 0.008.
  CHECK(std::abs(counts[0] - 0.5 / 0.97) < 0.008);
  CHECK(std::abs(counts[1] - 0.3 / 0.97) < 0.008);
  CHECK(std::abs(counts[2] - 0.17 / 0.97) < 0.008);
  CHECK(counts[3] == 0);
}

TEST_CASE("sampler: bias, penalty, temperature, top-k, top-p and min-p leave what transformers leaves") {
  const auto file = testing::test_json("text/sampling_cases.json");  // made by tests/tools/text/sampling_cases.py
  REQUIRE(file.at("cases").size() >= 50);
  for (const auto& each : file.at("cases")) {
    CAPTURE(each.dump());
    const auto& wanted = each.at("options");
    SamplerOptions options{.temperature = wanted.at("temperature"),
                           .top_k = wanted.at("top_k"),
                           .top_p = wanted.at("top_p"),
                           .min_p = wanted.at("min_p"),
                           .repetition_penalty = wanted.at("repetition_penalty")};
    for (const auto& [token, bias] : wanted.at("logit_bias").items())
      options.logit_bias[static_cast<uint32_t>(std::stoul(token))] = bias.is_string() ? -kInfinity : bias.get<double>();
    const auto candidates = sampler(options).candidates(each.at("logits").get<std::vector<float>>(),
                                                        each.at("context").get<std::vector<uint32_t>>());
    REQUIRE(candidates.has_value());
    const auto& probabilities = each.at("probabilities");
    CHECK(candidates->size() == probabilities.size());
    const double highest = std::ranges::max_element(*candidates, {}, &kernels::LikelyToken::logit)->logit;
    const auto exact = [&](const kernels::LikelyToken& one) {
      return std::exp((one.logit - highest) / options.temperature);
    };
    double sum = 0;
    uint64_t units = 0;
    for (const kernels::LikelyToken& candidate : *candidates) {
      sum += exact(candidate);
      units += candidate.weight;
    }
    for (const kernels::LikelyToken& candidate : *candidates) {
      REQUIRE(probabilities.contains(std::to_string(candidate.token)));
      const double probability = probabilities.at(std::to_string(candidate.token));
      // Both compute in double precision; sums of a dozen numbers round differently.
      CHECK(exact(candidate) / sum == doctest::Approx(probability).epsilon(1e-13));
      // What is drawn by is rounded to a unit, 2^-44 of the likeliest.
      CHECK(std::abs(static_cast<double>(candidate.weight) / static_cast<double>(units) - probability) < 1e-12);
    }
  }
}

TEST_CASE("sampler: greedy choice follows bias and penalty") {
  const std::vector<float> logits{1, 3, 2, -1};
  const auto choose = [&](const SamplerOptions& options, std::vector<uint32_t> context) {
    return *sampler(options).sample(logits, context);
  };
  CHECK(choose({.logit_bias = {{3, 4.5}}}, {}) == 3);
  CHECK(choose({.logit_bias = {{1, -kInfinity}}}, {}) == 2);
  CHECK(choose({.repetition_penalty = 2}, {1, 1, 1}) == 2);  // 3 / 2, once
  CHECK(choose({.repetition_penalty = 2}, {1, 2}) == 1);
  CHECK(choose({.repetition_penalty = 2}, {1, 77}) == 2);  // a token that has no logit
}

TEST_CASE("sampler: presence and frequency penalty count the answer alone") {
  const std::vector<float> logits{1, 3, 2, -1};
  const auto choose = [&](const SamplerOptions& options, std::vector<uint32_t> context, size_t prompt) {
    Sampler chooser = sampler(options);
    chooser.begin_answer(prompt);
    return *chooser.sample(logits, context);
  };
  CHECK(choose({.presence_penalty = 1.5}, {1, 1}, 0) == 2);     // 3 - 1.5
  CHECK(choose({.presence_penalty = 1.5}, {1, 1}, 2) == 1);     // of the prompt
  CHECK(choose({.presence_penalty = 0.9}, {1, 1}, 0) == 1);     // once, however often
  CHECK(choose({.frequency_penalty = 0.6}, {1}, 0) == 1);       // 3 - 0.6
  CHECK(choose({.frequency_penalty = 0.6}, {1, 1}, 0) == 2);    // 3 - 1.2
  CHECK(choose({.frequency_penalty = -2}, {3, 3, 3}, 0) == 3);  // -1 + 6
  CHECK(choose({.frequency_penalty = 2}, {1, 77}, 0) == 2);     // a token that has no logit
  CHECK_FALSE(sampler({.temperature = 1, .presence_penalty = 1}).drawn_as_they_stand());
  CHECK_FALSE(Sampler::make({.frequency_penalty = kInfinity}).has_value());
}

TEST_CASE("sampler: end tokens are not chosen before an answer has its least length") {
  Sampler greedy = sampler({.min_tokens = 2, .end_tokens = {1, 99}});
  const std::vector<float> logits = {0, 9, 5};
  greedy.begin_answer(3);
  CHECK_FALSE(greedy.takes_highest());
  CHECK(*greedy.sample(logits, std::vector<uint32_t>{0, 1, 1}) == 2);
  CHECK(*greedy.sample(logits, std::vector<uint32_t>{0, 1, 1, 2}) == 2);
  CHECK(*greedy.sample(logits, std::vector<uint32_t>{0, 1, 1, 2, 2}) == 1);
  Sampler drawing = sampler({.temperature = 1, .min_tokens = 2, .end_tokens = {1}});
  drawing.begin_answer(0);
  CHECK_FALSE(drawing.drawn_as_they_stand().has_value());
  CHECK(candidates_of(drawing, logits, {0}) == std::vector<uint32_t>{0, 2});
  CHECK(candidates_of(drawing, logits, {0, 0}) == std::vector<uint32_t>{0, 1, 2});
  CHECK(sampler({.min_tokens = 2}).takes_highest());  // nothing ends it anyway
}

TEST_CASE("sampler: a bias for a token that does not exist, and excluding all of them, are errors") {
  const std::vector<float> logits{0, 0};
  const Sampler far = sampler({.logit_bias = {{2, 1.0}}});
  CHECK(far.check_vocab(3).has_value());
  CHECK_FALSE(far.check_vocab(2).has_value());
  CHECK_FALSE(far.sample(logits, {}).has_value());
  for (const double temperature : {0.0, 1.0}) {
    Sampler none = sampler({.temperature = temperature, .logit_bias = {{0, -kInfinity}, {1, -kInfinity}}});
    CHECK_FALSE(none.sample(logits, {}).has_value());
  }
}

TEST_CASE("sampler: equals of the k-th highest stay") {
  const std::vector<float> logits{1, 2, 3, 2, 0};
  CHECK(candidates_of({.temperature = 1, .top_k = 2}, logits) == std::vector<uint32_t>{1, 2, 3});
  CHECK(candidates_of({.temperature = 1, .top_k = 1}, logits) == std::vector<uint32_t>{2});
}

TEST_CASE("sampler: what is drawn is what the Gumbel-max trick names with the C library's logarithm") {
  std::mt19937_64 engine(11);
  std::normal_distribution<float> normal;
  int close = 0;
  for (const double top_p : {1.0, 0.9}) {
    for (uint64_t i = 0; i < 2000; ++i) {
      std::vector<float> logits(200);
      for (float& logit : logits)
        logit = 4 * normal(engine);
      const Sampler random = sampler({.temperature = 0.9, .top_k = 50, .top_p = top_p, .seed = i});
      const auto candidates = random.candidates(logits, context_of(i % 7));
      REQUIRE(candidates.has_value());
      std::vector<std::pair<double, uint32_t>> scores;  // logit / temperature + Gumbel noise
      for (const kernels::LikelyToken& one : *candidates) {
        const uint64_t bits = kernels::noise_of({.seed = i, .position = i % 7}, one.token);
        const double u = std::ldexp(static_cast<double>(bits), -64);
        scores.emplace_back(one.logit / 0.9 - std::log(-std::log(u)), one.token);
      }
      std::ranges::sort(scores, std::greater{});
      const uint32_t drawn = *random.sample(logits, context_of(i % 7));
      if (scores.size() > 1 && scores[0].first - scores[1].first < 1e-9)
        ++close;  // rounding may decide
      else
        CHECK(drawn == scores[0].second);
    }
  }
  CHECK(close < 5);
}

TEST_CASE("sampler: only settings that need neither context nor bias are drawn from the logits as they stand") {
  CHECK(sampler({.temperature = 0.8, .top_k = 40}).drawn_as_they_stand() ==
        kernels::SampleSettings{.temperature = 0.8, .top_k = 40});
  CHECK_FALSE(sampler({.top_k = 40}).drawn_as_they_stand());
  CHECK_FALSE(sampler({.temperature = 1, .repetition_penalty = 1.1}).drawn_as_they_stand());
  CHECK_FALSE(sampler({.temperature = 1, .logit_bias = {{3, 1.0}}}).drawn_as_they_stand());
}

}  // namespace dspack::sampler_test
