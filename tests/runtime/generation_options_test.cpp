#include "runtime/cli/generation_options.h"

#include <doctest/doctest.h>

namespace dspack::runtime::generation_options_test {
namespace {

std::string described(std::string_view text) {
  const auto defaults = parse_generation_defaults(text);
  REQUIRE(defaults);
  std::string all = describe(defaults->sampling.over());
  for (const std::string& line : defaults->ignored)
    all += "\n" + line;
  return all;
}

}  // namespace

TEST_CASE("generation defaults: what repositories write") {
  CHECK(described(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95})") == "temperature 0.6, top-p 0.95");
  CHECK(described(R"({"temperature": 1.0, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1})") ==
        "temperature 1, top-k 20, min-p 0.05, repetition penalty 1.1");
  CHECK(described(R"({"do_sample": true})") == "temperature 1");
  CHECK(described(R"({"do_sample": false, "temperature": 0.6})") == "greedy");
  CHECK(described(R"({"temperature": null})") == "greedy");
  CHECK(described("{}") == "greedy");
}

TEST_CASE("generation defaults: what is no such number is ignored, with a line") {
  const std::string text = described(R"({"temperature": "hot", "top_p": 0, "top_k": -1, "min_p": 2, "do_sample": 1})");
  CHECK(text.starts_with("greedy\n"));
  for (const char* key : {"temperature", "top_p", "top_k", "min_p", "do_sample"})
    CHECK_MESSAGE(text.find(std::string(key) + " is ignored") != std::string::npos, text);
  CHECK_FALSE(parse_generation_defaults("[]"));
  CHECK_FALSE(parse_generation_defaults(R"({"temperature": 1e999})"));
}

TEST_CASE("generation defaults: options override them") {
  const auto defaults = parse_generation_defaults(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95})");
  REQUIRE(defaults);
  SamplingFlags flags;
  flags.temperature = 0;
  flags.seed = 7;
  const SamplerOptions chosen = flags.over(defaults->sampling.over());
  CHECK(chosen.temperature == 0);
  CHECK(chosen.top_p == 0.95);
  CHECK(chosen.seed == 7);
}

}  // namespace dspack::runtime::generation_options_test
