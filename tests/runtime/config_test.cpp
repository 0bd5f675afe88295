#include "runtime/config/config.h"
#include "format/json.h"

#include <doctest/doctest.h>

#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::config_test {
namespace {

format::Json tiny_config() {
  const auto json = format::parse_json(test::read_file(test::tiny_folder() / "config.json"), format::kManifestDocument);
  REQUIRE(json);
  return *json;
}

TEST_CASE("config: the sizes of a V3 checkpoint are taken as they are") {
  const auto config = parse_model_config(tiny_config().dump());
  REQUIRE(config);
  CHECK(config->hidden == 192);
  CHECK(config->layers == 5);
  CHECK(config->mtp_layers == 1);
  CHECK(config->query_dim() == 48);
  CHECK(config->cache_dim() == 96);
  CHECK(config->groups == 8);
  CHECK(config->quantization.block->out == 128);
  CHECK(config->rope.yarn->factor == 16);
  CHECK_FALSE(config->is_moe(LayerId(0)));
  CHECK(config->is_moe(LayerId(1)));
  CHECK(config->eos_tokens == std::vector<uint32_t>{1});
}

TEST_CASE("config: rope_parameters of newer transformers means the same as rope_scaling") {
  format::Json json = tiny_config();
  json["rope_parameters"] = json["rope_scaling"];
  json["rope_parameters"]["rope_type"] = "yarn";
  json["rope_parameters"]["rope_theta"] = 50000;
  json["rope_parameters"].erase("type");
  json.erase("rope_scaling");
  json.erase("rope_theta");
  const auto config = parse_model_config(json.dump());
  REQUIRE(config);
  CHECK(config->rope.theta == 50000);
  CHECK(config->rope.yarn->original_positions == 64);
}

TEST_CASE("config: without rope_scaling the embedding is plain, without q_lora_rank the query is one matrix") {
  format::Json json = tiny_config();
  json["rope_scaling"] = nullptr;
  json["q_lora_rank"] = nullptr;
  const auto config = parse_model_config(json.dump());
  REQUIRE(config);
  CHECK_FALSE(config->rope.yarn.has_value());
  CHECK(config->q_rank == 0);
}

TEST_CASE("config: softmax routing by the best expert of a group") {
  format::Json json = tiny_config();
  json["scoring_func"] = "softmax";
  json["topk_method"] = "group_limited_greedy";
  json["norm_topk_prob"] = false;
  const auto config = parse_model_config(json.dump());
  REQUIRE(config);
  CHECK(config->score == kernels::ScoreFunction::softmax);
  CHECK(config->group_score == kernels::GroupScore::max);
  CHECK_FALSE(config->selection_bias);
  CHECK_FALSE(config->normalise);
}

struct Broken {
  const char* key;
  format::Json value;
  ErrorKind kind;
};

TEST_CASE("config: what cannot be run is refused with file, key and value") {
  const std::vector<Broken> cases = {
      {"hidden_size", nullptr, ErrorKind::invalid},
      {"hidden_size", 0, ErrorKind::invalid},
      {"hidden_size", -3, ErrorKind::invalid},
      {"hidden_size", 1.5, ErrorKind::invalid},
      {"hidden_size", "192", ErrorKind::invalid},
      {"hidden_size", 18446744073709551615ULL, ErrorKind::invalid},
      {"num_hidden_layers", 1000000, ErrorKind::invalid},
      {"num_attention_heads", 16384, ErrorKind::unsupported},  // num_key_value_heads differs then
      {"num_key_value_heads", 2, ErrorKind::unsupported},
      {"qk_rope_head_dim", 15, ErrorKind::invalid},
      {"rms_norm_eps", "small", ErrorKind::invalid},
      {"n_group", 7, ErrorKind::invalid},
      {"n_group", 64, ErrorKind::invalid},  // groups of one have no two best experts
      {"topk_group", 9, ErrorKind::invalid},
      {"num_experts_per_tok", 33, ErrorKind::invalid},
      {"n_routed_experts", 0, ErrorKind::invalid},
      {"model_type", "llama", ErrorKind::unsupported},
      {"model_type", nullptr, ErrorKind::unsupported},
      {"scoring_func", "sqrtsoftplus", ErrorKind::unsupported},
      {"topk_method", "hash", ErrorKind::unsupported},
      {"hidden_act", "gelu", ErrorKind::unsupported},
      {"attention_bias", true, ErrorKind::unsupported},
      {"tie_word_embeddings", "yes", ErrorKind::invalid},
      {"rope_interleave", false, ErrorKind::unsupported},
      {"norm_topk_prob", "yes", ErrorKind::invalid},
      {"rope_scaling", 3, ErrorKind::invalid},
      {"quantization_config", {{"quant_method", "quip"}}, ErrorKind::unsupported},
      {"quantization_config", {{"quant_method", "fp8"}, {"fmt", "e5m2"}}, ErrorKind::unsupported},
      {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128}}}, ErrorKind::invalid},
      {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {0, 128}}}, ErrorKind::invalid},
      {"rope_scaling", {{"type", "longrope"}}, ErrorKind::unsupported},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 40}}, ErrorKind::invalid},  // no original context
      {"eos_token_id", "end", ErrorKind::invalid},
  };
  for (const Broken& broken : cases) {
    CAPTURE(broken.key);
    CAPTURE(broken.value.dump());
    format::Json json = tiny_config();
    json[broken.key] = broken.value;
    const auto config = parse_model_config(json.dump());
    REQUIRE_FALSE(config);
    CHECK(config.error().kind == broken.kind);
    CHECK(config.error().message.starts_with("config.json: "));
    CHECK(config.error().message.find('\n') == std::string::npos);
  }
  const auto named = parse_model_config(R"({"model_type": "deepseek_v3", "vocab_size": -1})");
  REQUIRE_FALSE(named);
  CHECK(named.error().message == "config.json: \"vocab_size\" is -1; expected a whole number from 1 to 16777216");
}

TEST_CASE("config: what is no JSON object is refused") {
  CHECK_FALSE(parse_model_config("{"));
  CHECK_FALSE(parse_model_config("[]"));
  CHECK_FALSE(parse_model_config(""));
}

TEST_CASE("config: end tokens are a number, a list, or absent") {
  CHECK(parse_eos_tokens(R"({"eos_token_id": 3})", "x").value() == std::vector<uint32_t>{3});
  CHECK(parse_eos_tokens(R"({"eos_token_id": [3, 4]})", "x").value() == std::vector<uint32_t>{3, 4});
  CHECK(parse_eos_tokens("{}", "x").value().empty());
  CHECK_FALSE(parse_eos_tokens(R"({"eos_token_id": [-1]})", "x"));
}

}  // namespace
}  // namespace dspack::runtime::config_test
