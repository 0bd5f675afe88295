// Every member of the family against transformers (FP32 on dequantised weights), with which a second reference agrees;
// tests/tools/family says how, and tests/data/family/family.json what each variant is there to show.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/support/family.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::family_golden_test {
namespace {

constexpr double kMaxNmse = 1e-8;

size_t argmax(std::span<const float> row) {
  return static_cast<size_t>(std::ranges::max_element(row) - row.begin());
}

std::vector<uint32_t> tokens_of(const test::StoredTensor& tensor) {
  const auto tokens = tensor.as<int32_t>();
  return {tokens.begin(), tokens.end()};
}

TEST_CASE("family: logits of every variant are the references', and so is every argmax") {
  for (const std::string& name : test::family_variants()) {
    CAPTURE(name);
    auto loaded = test::load_folder(test::family_folder() / name);
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    const uint32_t vocab = (*loaded)->model().config().vocab;
    const auto golden = test::read_safetensors(test::family_folder() / name / "golden.safetensors");
    for (const std::string prompt : {"long", "short"}) {
      CAPTURE(prompt);
      const std::vector<uint32_t> tokens = tokens_of(golden.at(prompt + ".tokens"));
      const std::vector<float> wanted = golden.at(prompt + ".logits").as<float>();
      const std::vector<float> got = test::logits_of(**loaded, tokens);
      const test::ErrorReport report = test::compare(got, golden.at(prompt + ".logits").as_double(), vocab);
      MESSAGE(name, ", ", prompt, ": ", report);
      CHECK_FALSE(report.count_mismatch);
      CHECK(report.not_a_number == 0);
      CHECK(report.nmse <= kMaxNmse);
      for (size_t row = 0; row < tokens.size(); ++row) {
        CAPTURE(row);
        CHECK(argmax(std::span(got).subspan(row * vocab, vocab)) ==
              argmax(std::span(wanted).subspan(row * vocab, vocab)));
      }
    }
  }
}

TEST_CASE("family: long prompts go beyond YaRN's original positions") {
  for (const std::string& name : test::family_variants()) {
    CAPTURE(name);
    const auto config = parse_model_config(test::read_file(test::family_folder() / name / "config.json"));
    REQUIRE(config);
    if (!config->rope.yarn) continue;
    const auto golden = test::read_safetensors(test::family_folder() / name / "golden.safetensors");
    CHECK(tokens_of(golden.at("long.tokens")).size() > 2 * config->rope.yarn->original_positions);
  }
}

TEST_CASE("family: a language model within another model gives the same bits") {
  test::AlteredVariant altered("kimi-k2");
  const format::Json text = altered.config;
  altered.config = {{"model_type", "kimi_k25"},
                    {"text_config", text},
                    {"vision_config", {{"hidden_size", 8}}},
                    {"tie_word_embeddings", false}};
  for (test::RawTensor& tensor : altered.tensors)
    tensor.name = "language_model." + tensor.name;
  altered.tensors.push_back({"vision_tower.encoder.weight", "BF16", {1}, std::string(2, '\0')});
  altered.tensors.push_back({"mm_projector.proj.0.weight", "BF16", {1}, std::string(2, '\0')});
  auto plain = test::load_folder(test::family_folder() / "kimi-k2");
  REQUIRE(plain);
  auto wrapped = test::load_folder(altered.write());
  REQUIRE_MESSAGE(wrapped, (wrapped ? "" : wrapped.error().message));
  const auto golden = test::read_safetensors(test::family_folder() / "kimi-k2" / "golden.safetensors");
  const std::vector<uint32_t> tokens = tokens_of(golden.at("long.tokens"));
  const std::vector<float> wanted = test::logits_of(**plain, tokens);
  CHECK(test::first_difference(test::logits_of(**wrapped, tokens), wanted) == wanted.size());
}

/// Makes the head a copy of the embedding, which is what a tied model computes with.
void copy_head(test::AlteredVariant& altered) {
  altered.tensor("lm_head.weight").bytes = altered.tensor("model.embed_tokens.weight").bytes;
}

TEST_CASE("family: a head that is tied to the embedding gives the bits of a copied one, in as much memory") {
  const auto golden = test::read_safetensors(test::family_folder() / "v2-lite" / "golden.safetensors");
  const std::vector<uint32_t> tokens = tokens_of(golden.at("long.tokens"));
  test::AlteredVariant copied("v2-lite");
  copy_head(copied);
  auto untied = test::load_folder(copied.write());
  REQUIRE_MESSAGE(untied, (untied ? "" : untied.error().message));
  const std::vector<float> wanted = test::logits_of(**untied, tokens);
  REQUIRE(test::first_difference(wanted, golden.at("long.logits").as<float>()) < wanted.size());
  for (const bool has_copy : {false, true}) {
    CAPTURE(has_copy);
    test::AlteredVariant altered("v2-lite");
    copy_head(altered);
    altered.config["tie_word_embeddings"] = true;
    if (!has_copy) altered.remove("lm_head.weight");
    auto tied = test::load_folder(altered.write());
    REQUIRE_MESSAGE(tied, (tied ? "" : tied.error().message));
    CHECK(test::first_difference(test::logits_of(**tied, tokens), wanted) == wanted.size());
    CHECK((*tied)->model().weight_bytes() == (*untied)->model().weight_bytes());
  }
}

TEST_CASE("family: a tied model with a head of its own that differs is refused") {
  test::AlteredVariant altered("v2-lite");
  altered.config["tie_word_embeddings"] = true;
  const auto refused = test::load_folder(altered.write());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::invalid);
  CHECK(refused.error().message.find("correct config.json, or remove one of them") != std::string::npos);
}

TEST_CASE("family: n_shared_experts null is none") {
  const auto golden = test::read_safetensors(test::family_folder() / "v2-lite" / "golden.safetensors");
  const std::vector<uint32_t> tokens = tokens_of(golden.at("short.tokens"));
  const auto without = [&](const format::Json& number) {
    test::AlteredVariant altered("v2-lite");
    for (const int layer : {1, 2})
      for (const char* part : {"gate_proj", "up_proj", "down_proj"})
        altered.remove("model.layers." + std::to_string(layer) + ".mlp.shared_experts." + part + ".weight");
    altered.config["n_shared_experts"] = number;
    auto loaded = test::load_folder(altered.write());
    REQUIRE_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
    return test::logits_of(**loaded, tokens);
  };
  const std::vector<float> wanted = without(0);
  CHECK(test::first_difference(without(nullptr), wanted) == wanted.size());
}

}  // namespace
}  // namespace dspack::runtime::family_golden_test
