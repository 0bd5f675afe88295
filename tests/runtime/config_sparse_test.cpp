// Sparse attention in config.json: what is read, and what is refused.
#include "runtime/config/config_sparse.h"

#include <doctest/doctest.h>

#include "tests/runtime/support/family.h"

namespace dspack::runtime::config_sparse_test {
namespace {

format::Json deepseek() {
  return test::read_json(test::family_folder() / "configs" / "deepseek-v3.2-exp.json");
}

/// GLM-4.7-Flash's with GLM-5's indexer, of so many layers.
format::Json glm(uint32_t layers = 11) {
  format::Json json = test::read_json(test::family_folder() / "configs" / "glm-4.7-flash.json");
  json["model_type"] = "glm_moe_dsa";
  json["num_hidden_layers"] = layers;
  json["index_n_heads"] = 32;
  json["index_head_dim"] = 128;
  json["index_topk"] = 2048;
  return json;
}

IndexerConfig indexer_of(const format::Json& json) {
  const auto config = parse_model_config(json.dump());
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  REQUIRE(config->indexer.has_value());
  return *config->indexer;
}

/// "FSS.."
std::string kinds_of(const format::Json& json) {
  const auto config = parse_model_config(json.dump());
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  std::string kinds;
  for (uint32_t layer = 0; layer < config->layers; ++layer)
    kinds += config->has_indexer(LayerId(layer)) ? 'F' : 'S';
  CHECK(config->has_indexer(LayerId(config->layers)));  // the MTP module's
  return kinds;
}

void check_refused(format::Json json, const char* key, const format::Json& value, std::string_view part) {
  if (value.is_discarded()) {
    json.erase(key);
  } else {
    json[key] = value;
  }
  CAPTURE(json.dump());
  const auto config = parse_model_config(json.dump());
  REQUIRE_FALSE(config);
  CAPTURE(config.error().message);
  CHECK(config.error().message.starts_with("config.json: "));
  CHECK(config.error().message.find(key) != std::string::npos);
  CHECK(config.error().message.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("config: DeepSeek-V3.2's indexer") {
  const IndexerConfig indexer = indexer_of(deepseek());
  CHECK(indexer.heads == 64);
  CHECK(indexer.dim == 128);
  CHECK(indexer.most == 2048);
  CHECK(indexer.pairs == kernels::RopePairs::halves);
  CHECK(indexer.shared.empty());
  CHECK_FALSE(indexer.drafts_share);
  format::Json v3 = test::read_json(test::family_folder() / "configs" / "deepseek-v3.json");
  CHECK_FALSE(parse_model_config(v3.dump())->indexer.has_value());
}

TEST_CASE("config: GLM-5's indexer, and which layers have one") {
  const IndexerConfig indexer = indexer_of(glm());
  CHECK(indexer.heads == 32);
  CHECK(indexer.pairs == kernels::RopePairs::neighbours);
  CHECK(kinds_of(glm()) == "FFFFFFFFFFF");
  format::Json json = glm();
  json["index_share_for_mtp_iteration"] = true;
  json["index_topk_freq"] = 4;
  json["index_skip_topk_offset"] = 3;
  json["index_topk_pattern"] = nullptr;
  CHECK(kinds_of(json) == "FFFSSSFSSSF");  // of GLM-5.2: 0, 1, 2, 6, 10
  CHECK(indexer_of(json).drafts_share);
  json.erase("index_skip_topk_offset");
  CHECK(kinds_of(json) == "FFSSSFSSSFS");  // from layer 2 on, where nothing is said
  json["index_topk_pattern"] = "FSFFSSSSSSS";
  CHECK(kinds_of(json) == "FSFFSSSSSSS");
  json["indexer_types"] = {"full",   "shared", "full",   "full",   "shared", "shared",
                           "shared", "shared", "shared", "shared", "shared"};
  CHECK(kinds_of(json) == "FSFFSSSSSSS");
  json = glm();
  json["index_topk_freq"] = 1;
  CHECK(kinds_of(json) == "FFFFFFFFFFF");
}

TEST_CASE("config: an indexer that cannot be run is refused by its key") {
  const format::Json absent(format::Json::value_t::discarded);
  for (const char* key : {"index_topk", "index_n_heads", "index_head_dim"}) {
    for (const format::Json& json : {deepseek(), glm()}) {
      check_refused(json, key, 0, "");
      check_refused(json, key, absent, "");
      check_refused(json, key, -1, "");
      check_refused(json, key, "2048", "");
      check_refused(json, key, 4294967296, "");
    }
  }
  check_refused(deepseek(), "index_n_heads", 1025, "1024");
  check_refused(deepseek(), "index_head_dim", 62, "first 64 values are rotated");
  check_refused(deepseek(), "q_lora_rank", nullptr, "latent of the queries");
  check_refused(deepseek(), "indexer_rope_interleave", true, "only false");
  check_refused(glm(), "indexer_rope_interleave", false, "only true");
  check_refused(deepseek(), "index_topk_freq", 4, "");  // only of GLM
  check_refused(glm(), "layer_types", {"sliding_attention"}, "indexed_attention");
}

TEST_CASE("config: patterns that contradict the layers, or each other, are refused") {
  check_refused(glm(), "index_topk_pattern", "FSS", "each of 11 layers");
  check_refused(glm(), "index_topk_pattern", "FSSSSSSSSSSS", "each of 11 layers");
  check_refused(glm(), "index_topk_pattern", "FSSSSSSSSSX", "a text of F and S");
  check_refused(glm(), "index_topk_pattern", "SFFFFFFFFFF", "the first layer");
  check_refused(glm(), "index_topk_pattern", 3, "a text of F and S");
  check_refused(glm(), "indexer_types", format::Json::array(), "each of 11 layers");
  check_refused(glm(), "indexer_types", {"full", 1}, "each of 11 layers");
  check_refused(glm(), "index_topk_freq", 0, "");
  format::Json json = glm();
  json["index_skip_topk_offset"] = 0;
  check_refused(json, "index_topk_freq", 4, "the first layer");
  json = glm(3);
  json["index_topk_pattern"] = "FSF";
  check_refused(json, "indexer_types", {"full", "full", "full"}, "contradicts \"index_topk_pattern\"");
  json = glm(3);
  json["index_topk_freq"] = 2;
  json["index_skip_topk_offset"] = 1;
  check_refused(json, "indexer_types", {"full", "full", "full"}, "contradicts \"index_topk_freq\"");
}

}  // namespace dspack::runtime::config_sparse_test
