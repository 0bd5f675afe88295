// The released config.json files of the family (tests/data/family/configs), and the rule that what is not known is
// refused.
#include <doctest/doctest.h>

#include "runtime/config/config.h"
#include "tests/runtime/support/family.h"

namespace dspack::runtime::config_family_test {
namespace {

format::Json released(const std::string& name) {
  return test::read_json(test::family_folder() / "configs" / (name + ".json"));
}

ModelConfig parsed(const format::Json& json) {
  const auto config = parse_model_config(json.dump());
  REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
  return *config;
}

void check_refused(const format::Json& json, ErrorKind kind, const std::string& part) {
  const auto config = parse_model_config(json.dump());
  CAPTURE(json.dump());
  REQUIRE_FALSE(config);
  CAPTURE(config.error().message);
  CHECK(config.error().kind == kind);
  CHECK(config.error().message.starts_with("config.json: "));
  CHECK(config.error().message.find(part) != std::string::npos);
  CHECK(config.error().message.find('\n') == std::string::npos);
}

TEST_CASE("released configs: every one is read") {
  size_t read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::family_folder() / "configs")) {
    CAPTURE(entry.path().string());
    (void)parsed(test::read_json(entry.path()));
    ++read;
  }
  CHECK(read >= 10);
}

TEST_CASE("released configs: R1 and both forms of V3 are one model, V3.1 as well") {
  const ModelConfig v3 = parsed(released("deepseek-v3"));
  CHECK(parsed(released("deepseek-r1")) == v3);
  CHECK(parsed(released("deepseek-v3.1")) == v3);  // its scales are powers of two, which the tensors say
  ModelConfig unquantised = parsed(released("deepseek-v3-bf16"));
  CHECK_FALSE(unquantised.quantization.block.has_value());
  unquantised.quantization = v3.quantization;
  unquantised.is_quantised = v3.is_quantised;
  unquantised.expected = v3.expected;
  CHECK(unquantised == v3);
}

TEST_CASE("released configs: saved again by transformers 5.23.0, V4 by 5.24.0, they mean the same") {
  for (const std::string name : {"deepseek-v3", "deepseek-v2-lite-chat", "deepseek-v3.2-exp", "deepseek-v4-flash-0731",
                                 "deepseek-v4-pro-0813", "glm-4.7-flash", "glm-5", "glm-5.2"}) {
    CAPTURE(name);
    const ModelConfig saved = parsed(test::read_json(test::family_folder() / "configs-saved" / (name + ".json")));
    CHECK(saved == parsed(released(name)));
  }
}

TEST_CASE("released configs: V2-Lite and V2.5") {
  const ModelConfig lite = parsed(released("deepseek-v2-lite-chat"));
  CHECK(lite.q_rank == 0);
  CHECK(lite.score == kernels::ScoreFunction::softmax);
  CHECK(lite.groups == 1);
  CHECK(lite.rope.yarn->mscale_all_dim == 0.707);
  CHECK_FALSE(lite.selection_bias);
  const ModelConfig v25 = parsed(released("deepseek-v2.5-236b"));
  CHECK(v25.group_score == kernels::GroupScore::max);
  CHECK(v25.groups == 8);
  CHECK(v25.groups_kept == 3);
  CHECK(v25.routed_scale == 16);
  CHECK_FALSE(v25.normalise);
}

TEST_CASE("released configs: Kimi-K2, Moonlight, GLM-4.7-Flash, V3.2") {
  const ModelConfig kimi = parsed(released("kimi-k2-instruct"));
  CHECK(kimi.experts == 384);
  CHECK(kimi.groups == 1);
  CHECK(kimi.rope.yarn->beta_fast == 1);
  CHECK(kimi.rope.theta == 50000);
  const ModelConfig moonlight = parsed(released("moonlight-16b-a3b"));
  CHECK(moonlight.norm_epsilon == 1e-5F);
  CHECK_FALSE(moonlight.rope.yarn.has_value());
  const ModelConfig glm = parsed(released("glm-4.7-flash"));
  CHECK(glm.value_dim > glm.nope_dim);
  CHECK(glm.mtp_layers == 1);
  CHECK(glm.eos_tokens.size() == 3);
  CHECK(glm.max_positions == 202752);
  const ModelConfig v32 = parsed(released("deepseek-v3.2-exp"));
  CHECK(v32.max_positions == 163840);
}

TEST_CASE("released configs: GLM-5 and GLM-5.2, whose choices are said in three ways") {
  const ModelConfig glm5 = parsed(released("glm-5"));
  CHECK(glm5.indexer->shared.empty());
  CHECK(glm5.indexer->pairs == kernels::RopePairs::neighbours);
  CHECK(glm5.indexer->heads == 32);
  CHECK(glm5.indexer->most == 2048);
  CHECK(glm5.rope.theta == 1e6);
  CHECK_FALSE(glm5.indexer->drafts_share);
  const ModelConfig glm52 = parsed(released("glm-5.2"));
  CHECK(glm52.max_positions == 1048576);
  CHECK(glm52.rope.theta == 8e6);
  CHECK(glm52.indexer->drafts_share);
  std::vector<uint32_t> full;
  for (uint32_t layer = 0; layer < glm52.layers + glm52.mtp_layers; ++layer) {
    if (glm52.has_indexer(LayerId(layer))) full.push_back(layer);
  }
  // Of the released checkpoint's index: 22 indexers, the last of them the MTP module's.
  CHECK(full ==
        std::vector<uint32_t>{0, 1, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 66, 70, 74, 78});
  CHECK(parsed(released("glm-5.2-by-frequency")) == glm52);
  CHECK(parsed(released("glm-5.2-by-pattern")) == glm52);
  ModelConfig fp8 = parsed(released("glm-5.2-fp8"));
  CHECK(fp8.quantization.block.has_value());
  fp8.quantization = glm52.quantization;
  fp8.is_quantised = glm52.is_quantised;
  fp8.expected = glm52.expected;
  CHECK(fp8 == glm52);
}

TEST_CASE("released configs: a language model within another model") {
  const format::Json text = released("kimi-k2-instruct");
  format::Json outer = {{"model_type", "kimi_k25"}, {"text_config", text}, {"vision_config", format::Json::object()}};
  CHECK(parsed(outer) == parsed(text));
  outer["text_config"].erase("quantization_config");
  outer["quantization_config"] = text["quantization_config"];
  outer["text_config"].erase("eos_token_id");
  outer["eos_token_id"] = text["eos_token_id"];
  CHECK(parsed(outer) == parsed(text));
  outer["hidden_size"] = 7168;
  check_refused(outer, ErrorKind::unsupported, "\"hidden_size\"");
  outer.erase("hidden_size");
  outer["text_config"]["rope_scaling"]["type"] = "su";
  check_refused(outer, ErrorKind::unsupported, R"(in "text_config": in "rope_scaling": "type" is "su")");
  outer["model_type"] = "llava";
  check_refused(outer, ErrorKind::unsupported, "llava");
}

TEST_CASE("config: layers listed one by one") {
  format::Json json = released("glm-4.7-flash");
  json["num_hidden_layers"] = 4;
  json["mlp_layer_types"] = {"dense", "sparse", "sparse", "sparse"};
  CHECK(parsed(json).is_moe(LayerId(3)));
  json["mlp_layer_types"] = {"dense", "sparse", "dense", "sparse"};
  check_refused(json, ErrorKind::invalid, "layer 2 contradicts first_k_dense_replace");
  json.erase("first_k_dense_replace");
  const ModelConfig config = parsed(json);
  CHECK(config.is_moe(LayerId(1)));
  CHECK_FALSE(config.is_moe(LayerId(2)));
  CHECK(config.is_moe(LayerId(4)));  // an MTP module
  json["mlp_layer_types"] = {"dense", "sparse", "dense"};
  check_refused(json, ErrorKind::invalid, "expected 4 times");
  json["mlp_layer_types"] = {"dense", "sparse", "dense", "hash"};
  check_refused(json, ErrorKind::invalid, "mlp_layer_types");
  json.erase("mlp_layer_types");
  check_refused(json, ErrorKind::invalid, "first_k_dense_replace");
}

struct Change {
  const char* key;
  format::Json value;
  ErrorKind kind;
  const char* part;
};

TEST_CASE("config: a key that is not known is refused, and so is a value that no reference computes") {
  const std::vector<Change> changes = {
      {"attn_temperature", 0.5, ErrorKind::unsupported, "might change the result"},
      {"swiglu_limit", 10, ErrorKind::unsupported, "\"swiglu_limit\" is 10; this program does not know the key"},
      {"index_topk", 2048, ErrorKind::unsupported, "index_topk"},  // only of V3.2
      {"a\nkey", 1, ErrorKind::unsupported, "a\\nkey"},
      {"mlp_bias", true, ErrorKind::unsupported, "mlp_bias"},
      {"partial_rotary_factor", 0.5, ErrorKind::unsupported, "rotated in full"},
      {"sliding_window", 4096, ErrorKind::unsupported, "sliding_window"},
      {"head_dim", 100, ErrorKind::invalid, "qk_rope_head_dim"},
      {"qk_head_dim", 100, ErrorKind::invalid, "qk_head_dim"},
      {"num_local_experts", 8, ErrorKind::invalid, "n_routed_experts"},
      {"norm_topk_prob", nullptr, ErrorKind::invalid, "norm_topk_prob"},
      {"routed_scaling_factor", nullptr, ErrorKind::invalid, "routed_scaling_factor"},
      {"n_group", nullptr, ErrorKind::invalid, "n_group"},
      {"first_k_dense_replace", nullptr, ErrorKind::invalid, "first_k_dense_replace"},
      {"scoring_func", "softmax", ErrorKind::unsupported, "noaux_tc"},
      {"topk_method", "greedy", ErrorKind::unsupported, "sigmoid"},
      {"rope_scaling", {{"type", "yarn"}, {"rope_type", "default"}}, ErrorKind::invalid, "rope_type"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}, ErrorKind::unsupported, "linear"},
      {"rope_scaling", {{"type", "default"}, {"factor", 2}}, ErrorKind::unsupported, "in \"rope_scaling\": \"factor\""},
      {"rope_parameters", {{"rope_type", "default"}}, ErrorKind::invalid, "rope_scaling"},
  };
  for (const Change& change : changes) {
    format::Json json = released("deepseek-v3");
    json[change.key] = change.value;
    check_refused(json, change.kind, change.part);
  }
  format::Json v2 = released("deepseek-v2-lite-chat");
  v2["norm_topk_prob"] = true;
  check_refused(v2, ErrorKind::unsupported, "disagree");
}

TEST_CASE("config: rotary parameters that no reference computes") {
  const std::vector<Change> changes = {
      {"low_freq_factor", 1, ErrorKind::unsupported, "in \"rope_scaling\": \"low_freq_factor\""},
      {"mscale", nullptr, ErrorKind::unsupported, "must be given together"},
      {"mscale_all_dim", 0, ErrorKind::unsupported, "must be given together"},
      {"rope_theta", 5, ErrorKind::invalid, "rope_theta"},
      {"partial_rotary_factor", 0.25, ErrorKind::unsupported, "rotated in full"},
      {"factor", "40", ErrorKind::invalid, "factor"},
  };
  for (const Change& change : changes) {
    format::Json json = released("deepseek-v3");
    json["rope_scaling"][change.key] = change.value;
    check_refused(json, change.kind, change.part);
  }
}

TEST_CASE("config: how weights are stored is read where it matters, and refused where it is not known") {
  const std::vector<Change> changes = {
      {"quant_method", "quip", ErrorKind::unsupported, "quip"},
      {"fmt", "e5m2", ErrorKind::unsupported, "e5m2"},
      {"scale_fmt", "ue4m3", ErrorKind::unsupported, "ue4m3"},
      {"bits", 4, ErrorKind::unsupported, "in \"quantization_config\": \"bits\" is 4"},
      {"weight_block_size", {128, -1}, ErrorKind::invalid, "weight_block_size"},
  };
  for (const Change& change : changes) {
    format::Json json = released("deepseek-v3");
    json["quantization_config"][change.key] = change.value;
    check_refused(json, change.kind, change.part);
  }
  format::Json json = released("deepseek-v3");
  CHECK(parsed(json).notes.empty());
  for (const char* method : {"", "something-new"}) {
    format::Json unknown = json;
    unknown["quantization_config"]["quant_method"] = method;
    CHECK(parsed(unknown).notes.size() == 3);  // of it, and of two keys whose meaning is its own
    CHECK(parsed(unknown).notes[0].find("goes by the tensors") != std::string::npos);
  }
  json["quantization_config"]["activation_scheme"] = "static";
  json["quantization_config"]["modules_to_not_convert"] = {"lm_head", "mlp.gate"};
  json["quantization_config"]["weight_block_size"] = {48, 7};
  // Of the cache of other programs; this one's is what --kv-dtype says.
  json["quantization_config"]["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
  CHECK(parsed(json).quantization.block == format::BlockSize{.out = 48, .in = 7});
}

TEST_CASE("config: four bits and groups, as compressed-tensors and modelopt say them") {
  const auto with = [](const char* format, const format::Json& weights) {
    format::Json json = released("deepseek-v3");
    json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", format},
                                   {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
    return json;
  };
  const format::Json int4 = {{"num_bits", 4}, {"type", "int"}, {"strategy", "group"}, {"group_size", 32}};
  CHECK(parsed(with("pack-quantized", int4)).quantization ==
        format::Quantization{.bits = 4, .group = 32, .symmetric = true});
  format::Json zeros = int4;
  zeros["symmetric"] = false;
  CHECK(parsed(with("pack-quantized", zeros)).quantization ==
        format::Quantization{.bits = 4, .group = 32, .symmetric = false});
  const format::Json fp4 = {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}};
  CHECK(parsed(with("nvfp4-pack-quantized", fp4)).quantization ==
        format::Quantization{.bits = 4, .group = 16, .symmetric = true});
  // Codes and 8-bit floats are told apart by their tensors; where groups of one kind differ, the tensors decide.
  const auto second = [](format::Json config, const format::Json& weights) {
    config["quantization_config"]["config_groups"]["group_1"] = {{"weights", weights}};
    return config;
  };
  const format::Json mixed = with("mixed-precision", int4);
  const format::Quantization four{.bits = 4, .group = 32, .symmetric = true};
  CHECK(parsed(second(mixed, {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}})).quantization == four);
  format::Quantization blocks = four;
  blocks.block = format::BlockSize{.out = 128, .in = 128};
  CHECK(parsed(
            second(mixed, {{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {128, 128}}}))
            .quantization == blocks);
  CHECK(parsed(second(mixed, {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}})).quantization ==
        format::Quantization{.symmetric = true});
  CHECK(parsed(second(mixed, zeros)).quantization == format::Quantization{.bits = 4, .group = 32});
  format::Json int8 = int4;
  int8["num_bits"] = 8;
  CHECK(parsed(second(mixed, int8)).quantization == format::Quantization{.group = 32, .symmetric = true});
  CHECK(parsed(second(mixed, fp4)).quantization == format::Quantization{.bits = 4, .symmetric = true});
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, format::Json>>{
           {"group_size", 0}, {"group_size", -1}, {"group_size", "32"}, {"num_bits", 64}, {"symmetric", 1}}) {
    format::Json wrong = int4;
    wrong[key] = value;
    CAPTURE(key);
    CAPTURE(value.dump());
    CHECK_FALSE(parse_model_config(with("pack-quantized", wrong).dump()).has_value());
  }
  check_refused(with("marlin-24", int4), ErrorKind::unsupported, "marlin-24");

  format::Json modelopt = released("deepseek-v3");
  modelopt["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 16}, {"exclude_modules", {"lm_head"}}};
  CHECK(parsed(modelopt).quantization == format::Quantization{.group = 16});
  modelopt["quantization_config"]["quant_algo"] = "MIXED_PRECISION";
  CHECK(parsed(modelopt).quantization == format::Quantization{});
  modelopt["quantization_config"]["quant_algo"] = "W4A8_AWQ";
  check_refused(modelopt, ErrorKind::unsupported, "W4A8_AWQ");
}

TEST_CASE("config: bitsandbytes, and forms that are refused with a reason") {
  format::Json json = released("deepseek-v3");
  format::Json& said = json["quantization_config"];
  said = {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"bnb_4bit_compute_dtype", "bfloat16"},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", true},
          {"llm_int8_skip_modules", nullptr},
          {"llm_int8_threshold", 6.0}};
  CHECK(parsed(json).quantization == format::Quantization{.bits = 4, .four_bits = "nf4"});
  said["bnb_4bit_quant_type"] = "int4";
  check_refused(json, ErrorKind::unsupported, "bnb_4bit_quant_type");
  said["bnb_4bit_quant_type"] = "fp4";
  said["load_in_8bit"] = true;
  check_refused(json, ErrorKind::invalid, "load_in_4bit");
  said["load_in_4bit"] = false;  // the kind of four bits is then that of the defaults
  CHECK(parsed(json).quantization == format::Quantization{.bits = 8});
  said["bnb_8bit_kind"] = 1;
  CHECK(parsed(json).notes.size() == 1);
  for (const auto& [method, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {"eetq", "no file says which"}, {"exl2", "permuted"}, {"exl3", "trellis"}, {"mxfp4", "gpt-oss"}}) {
    said = {{"quant_method", method}};
    check_refused(json, ErrorKind::unsupported, reason);
  }
}

TEST_CASE("config: compressed-tensors with 8-bit floats") {
  const auto with = [](const format::Json& weights) {
    format::Json json = released("deepseek-v3");
    json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", "float-quantized"},
                                   {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
    return json;
  };
  CHECK_FALSE(
      parsed(with({{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}})).quantization.block.has_value());
  CHECK(parsed(with({{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {64, 32}}}))
            .quantization.block == format::BlockSize{.out = 64, .in = 32});
  format::Json cached = with({{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}});
  cached["quantization_config"]["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}};
  CHECK(parsed(cached) == parsed(with({{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}})));
  check_refused(with({{"num_bits", 4}, {"type", "int"}}), ErrorKind::unsupported, "strategy");
  check_refused(with({{"num_bits", 3}, {"type", "int"}, {"strategy", "channel"}}), ErrorKind::unsupported, "num_bits");
  check_refused(with({{"num_bits", 8}, {"type", "uint"}}), ErrorKind::unsupported, "type");
  CHECK_FALSE(parsed(with({{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}})).quantization.block.has_value());
  check_refused(with({{"num_bits", 8}, {"type", "int"}}), ErrorKind::unsupported, "strategy");
  check_refused(with({{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}, {"symmetric", false}}),
                ErrorKind::unsupported, "symmetric");
  check_refused(with({{"num_bits", 8}, {"type", "float"}, {"strategy", "group"}}), ErrorKind::unsupported, "strategy");
  CHECK(parsed(with({{"num_bits", 8}, {"type", "float"}, {"zero", 1}})).notes.size() == 1);
}

TEST_CASE("released configs: Mistral-Small-4's keys, and what they must not be") {
  const format::Json json = test::read_json(test::family_folder() / "configs" / "mistral-small-4.json");
  const ModelConfig config = parsed(json);
  CHECK(config.score == kernels::ScoreFunction::softmax);
  CHECK(config.normalise);
  CHECK_FALSE(config.selection_bias);
  CHECK(config.rope.query_beta == 0.1);
  CHECK(config.rope.yarn->original_positions == 8192);
  CHECK(config.is_moe(LayerId(0)));
  // A wrapper of pictures around it, as in Mistral's repositories.
  format::Json wrapped = {{"model_type", "mistral3"},          {"text_config", json},
                          {"image_token_index", 10},           {"spatial_merge_size", 2},
                          {"vision_feature_layer", -1},        {"projector_hidden_act", "gelu"},
                          {"multimodal_projector_bias", false}};
  CHECK(parsed(wrapped) == config);
  const auto changed = [&](const char* key, const format::Json& value) {
    format::Json other = json;
    other["rope_parameters"][key] = value;
    return other;
  };
  check_refused(changed("partial_rotary_factor", 1.0), ErrorKind::unsupported, "partial_rotary_factor");
  check_refused(changed("max_position_embeddings", 8192), ErrorKind::invalid, "max_position_embeddings");
  check_refused(changed("rope_type", "default"), ErrorKind::invalid, "type");
  format::Json plain = changed("rope_type", "default");
  plain["rope_parameters"].erase("type");
  check_refused(plain, ErrorKind::unsupported, "llama_4_scaling_beta");
  // Other models of the graph have no such factor in any implementation.
  format::Json v3 = test::read_json(test::family_folder() / "configs" / "deepseek-v3.json");
  v3["rope_scaling"]["llama_4_scaling_beta"] = 0.1;
  check_refused(v3, ErrorKind::unsupported, "llama_4_scaling_beta");
}

}  // namespace
}  // namespace dspack::runtime::config_family_test
