// DeepSeek-V4's part of config.json: what the released files mean, and what is refused, by key and reason.
#include <doctest/doctest.h>

#include "runtime/config/config.h"
#include "tests/runtime/support/family.h"

namespace dspack::runtime::config_window_test {
namespace {

format::Json released(const std::string& name) {
  return test::read_json(test::family_folder() / "configs" / (name + ".json"));
}

ModelConfig parsed(const format::Json& json) {
  const auto config = parse_model_config(json.dump());
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  return *config;
}

TEST_CASE("V4's config: Flash and Pro, in April and later") {
  const ModelConfig flash = parsed(released("deepseek-v4-flash-0731"));
  CHECK(flash.layers == 43);
  CHECK(flash.query_dim() == 512);
  CHECK(flash.rope_dim == 64);
  CHECK(flash.value_dim == 512);
  CHECK(flash.window->positions == 128);
  CHECK(flash.window->every.size() == 43);
  CHECK(flash.entry_positions(LayerId(0)) == 0);
  CHECK(flash.entry_positions(LayerId(2)) == 4);
  CHECK(flash.entry_positions(LayerId(3)) == 128);
  CHECK(flash.entry_positions(LayerId(42)) == 4);
  CHECK(flash.entry_positions(LayerId(43)) == 0);  // of a draft module
  CHECK(flash.has_indexer(LayerId(2)));
  CHECK_FALSE(flash.has_indexer(LayerId(3)));
  CHECK(flash.streams->count == 4);
  CHECK(flash.streams->rounds == 20);
  CHECK(flash.layers_by_token == 3);
  CHECK(flash.gate_limit == 10);
  CHECK(flash.rope.theta == 10000);
  CHECK_FALSE(flash.rope.yarn.has_value());
  CHECK(flash.window->rope.theta == 160000);
  CHECK(flash.window->rope.yarn->factor == 16);
  CHECK(flash.window->rope.yarn->attention_factor == 1);  // cosines are multiplied with nothing
  CHECK(flash.mtp_layers == 3);
  CHECK(flash.draft_layers() == std::vector{LayerId(43), LayerId(44), LayerId(45)});
  CHECK(flash.expects_fp4);
  CHECK(flash.dspark->block == 5);
  CHECK(flash.dspark->noise_token == 128799);
  CHECK(flash.dspark->layers == std::vector{LayerId(40), LayerId(41), LayerId(42)});
  CHECK(flash.dspark->markov_rank == 256);
  ModelConfig april = parsed(released("deepseek-v4-flash"));
  CHECK(april.mtp_layers == 1);
  CHECK(april.draft_layers() == std::vector{LayerId(43)});
  CHECK_FALSE(april.dspark.has_value());
  april.mtp_layers = flash.mtp_layers;
  april.dspark = flash.dspark;
  CHECK(april == flash);
  const ModelConfig pro = parsed(released("deepseek-v4-pro-0813"));
  CHECK(pro.layers == 61);
  CHECK(pro.entry_positions(LayerId(0)) == 128);
  CHECK(pro.indexer->most == 1024);
  CHECK(pro.routed_scale == 2.5F);
  ModelConfig pro_april = parsed(released("deepseek-v4-pro"));
  CHECK(pro_april.mtp_layers == 1);
  CHECK(pro.dspark->markov_rank == 512);
  pro_april.mtp_layers = pro.mtp_layers;
  pro_april.dspark = pro.dspark;
  CHECK(pro_april == pro);
}

TEST_CASE("V4's config: a module for drafts with entries is refused") {
  for (const std::string name : {"deepseek-v4-flash", "deepseek-v4-flash-0731"}) {
    CAPTURE(name);
    format::Json json = released(name);
    json["compress_ratios"][json["compress_ratios"].size() - 1] = 4;
    const auto config = parse_model_config(json.dump());
    REQUIRE_FALSE(config.has_value());
    CHECK(config.error().kind == ErrorKind::unsupported);
    CHECK(config.error().message.find("after the layers' numbers all must be 0") != std::string::npos);
  }
}

TEST_CASE("V4's config: the keys of DSpark are checked, and its stages counted") {
  format::Json json = released("deepseek-v4-flash-0731");
  json["compress_ratios"].erase(json["compress_ratios"].size() - 1);
  CHECK(parsed(json).mtp_layers == 2);
  const std::vector<std::pair<std::string, format::Json>> refused = {
      {"dspark_block_size", 0},
      {"dspark_block_size", 65},
      {"dspark_block_size", nullptr},
      {"dspark_noise_token_id", 129280},
      {"dspark_noise_token_id", -1},
      {"dspark_target_layer_ids", nullptr},
      {"dspark_target_layer_ids", 41},
      {"dspark_target_layer_ids", format::Json::array()},
      {"dspark_target_layer_ids", {40, 40}},
      {"dspark_target_layer_ids", {40, 43}},
      {"dspark_target_layer_ids", {40, "41"}},
      {"dspark_target_layer_ids", {40, -1}},
      {"dspark_target_layer_ids", {40, 1ULL << 40}},
      {"dspark_target_layer_ids", std::vector<int>(17, 1)},
      {"dspark_markov_rank", 0},
      {"dspark_markov_rank", nullptr},
  };
  for (const auto& [key, value] : refused) {
    CAPTURE(key);
    CAPTURE(value.dump());
    json = released("deepseek-v4-flash-0731");
    json[key] = value;
    const auto config = parse_model_config(json.dump());
    REQUIRE_FALSE(config.has_value());
    CHECK(config.error().kind == ErrorKind::invalid);
    CHECK(config.error().message.find(key) != std::string::npos);
  }
}

struct Refusal {
  std::string key;
  format::Json value;  // null: the key is taken out
  ErrorKind kind;
  std::string reason;
};

TEST_CASE("V4's config: what cannot be run is refused by its key") {
  const std::vector<Refusal> refusals = {
      {"compress_rope_theta", nullptr, ErrorKind::invalid, "\"compress_rope_theta\""},
      {"compress_ratios", nullptr, ErrorKind::invalid, "\"compress_ratios\""},
      {"compress_ratios", {0, 4, 128}, ErrorKind::unsupported, "each of 43 layers"},
      {"compress_ratios", std::vector<int>(43, 8), ErrorKind::unsupported, "expected 0, 4 or 128"},
      {"num_key_value_heads", 8, ErrorKind::unsupported, "all heads share a key"},
      {"o_groups", 7, ErrorKind::invalid, "64 heads do not divide"},
      {"hc_mult", 9, ErrorKind::invalid, "\"hc_mult\""},
      {"hc_mult", 0, ErrorKind::invalid, "\"hc_mult\""},
      {"hc_sinkhorn_iters", 0, ErrorKind::invalid, "\"hc_sinkhorn_iters\""},
      {"scoring_func", "sigmoid", ErrorKind::unsupported, "sqrtsoftplus"},
      {"topk_method", "greedy", ErrorKind::unsupported, "noaux_tc"},
      {"norm_topk_prob", false, ErrorKind::unsupported, "\"norm_topk_prob\""},
      {"swiglu_limit", nullptr, ErrorKind::invalid, "\"swiglu_limit\""},
      {"swiglu_limit", 0, ErrorKind::invalid, "\"swiglu_limit\""},
      {"num_hash_layers", 44, ErrorKind::invalid, "\"num_hash_layers\""},
      {"num_experts_per_tok", 257, ErrorKind::invalid, "only 256 experts"},
      {"qk_rope_head_dim", 63, ErrorKind::invalid, "must be even"},
      {"qk_rope_head_dim", 514, ErrorKind::invalid, "at most head_dim 512"},
      {"index_head_dim", 32, ErrorKind::invalid, "last 64 values are rotated"},
      {"tie_word_embeddings", true, ErrorKind::unsupported, "\"tie_word_embeddings\""},
      {"sliding_window", 0, ErrorKind::invalid, "\"sliding_window\""},
      {"attention_bias", true, ErrorKind::unsupported, "\"attention_bias\""},
      {"layer_types", std::vector<std::string>(43, "sliding_attention"), ErrorKind::invalid, "contradicts"},
      {"mlp_layer_types", std::vector<std::string>(43, "moe"), ErrorKind::invalid, "\"num_hash_layers\""},
      {"compress_rates", {{"compressed_sparse_attention", 8}}, ErrorKind::unsupported, "rates of 4 and 128"},
      {"logit_softcap", 30, ErrorKind::unsupported, "\"logit_softcap\""},
      {"model_type", "deepseek_v41", ErrorKind::unsupported, "Engram"},
  };
  for (const Refusal& refusal : refusals) {
    CAPTURE(refusal.key);
    CAPTURE(refusal.value.dump());
    format::Json json = released("deepseek-v4-flash-0731");
    if (refusal.value.is_null()) {
      json.erase(refusal.key);
    } else {
      json[refusal.key] = refusal.value;
    }
    const auto config = parse_model_config(json.dump());
    REQUIRE_FALSE(config);
    CHECK(config.error().kind == refusal.kind);
    CHECK_MESSAGE(config.error().message.find(refusal.reason) != std::string::npos, config.error().message);
  }
}

TEST_CASE("V4's config: YaRN with a factor of its own is refused") {
  for (const char* key : {"attention_factor", "mscale"}) {
    CAPTURE(key);
    format::Json json = released("deepseek-v4-flash");
    json["rope_scaling"][key] = 1.277;
    if (std::string_view(key) == "mscale") json["rope_scaling"]["mscale_all_dim"] = 1.277;
    const auto config = parse_model_config(json.dump());
    REQUIRE_FALSE(config);
    CHECK(config.error().message.find("no factor of its own") != std::string::npos);
  }
}

}  // namespace
}  // namespace dspack::runtime::config_window_test
