#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>

#include "format/tensor_name.h"

namespace dspack::tensor_name_test {

using namespace dspack;
using namespace dspack::format;
using format::parse_tensor_name;
using format::Role;

namespace {

struct Case {
  const char* name;
  Role role;
  int layer;   // -1: none
  int expert;  // -1: none
};

void check_names(std::initializer_list<Case> cases) {
  for (const Case& entry : cases) {
    CAPTURE(entry.name);
    const format::TensorName name = parse_tensor_name(entry.name);
    CHECK(to_string(name.role) == to_string(entry.role));
    CHECK((name.layer ? static_cast<int>(name.layer->value) : -1) == entry.layer);
    CHECK((name.expert ? static_cast<int>(name.expert->value) : -1) == entry.expert);
    // Every name comes back from its template, alone and as one of several.
    for (const std::optional<size_t> entry_of : {std::optional<size_t>(), std::optional<size_t>(12)}) {
      const std::string text = format::name_template(entry.name, entry_of);
      CHECK(expand_template(text, name.layer, name.expert) == entry.name);
      CHECK(format::template_entry(text) == (name.expert ? std::optional(entry_of.value_or(0)) : std::nullopt));
    }
  }
}

constexpr int kMtp0 = format::kFirstMtpLayer;

}  // namespace

TEST_CASE("tensor name: roles, layers and experts of the V3 family") {
  check_names({
      {"model.embed_tokens.weight", Role::embed, -1, -1},
      {"model.norm.weight", Role::head, -1, -1},
      {"lm_head.weight", Role::head, -1, -1},
      {"model.layers.0.input_layernorm.weight", Role::norm, 0, -1},
      {"model.layers.60.self_attn.kv_a_proj_with_mqa.weight_scale_inv", Role::attention, 60, -1},
      {"model.layers.3.mlp.gate.weight", Role::router, 3, -1},
      {"model.layers.3.mlp.gate.e_score_correction_bias", Role::router, 3, -1},
      {"model.layers.1.mlp.gate_proj.weight", Role::dense_mlp, 1, -1},
      {"model.layers.3.mlp.shared_experts.up_proj.weight", Role::shared_expert, 3, -1},
      {"model.layers.3.mlp.experts.255.down_proj.weight_scale_inv", Role::routed_expert, 3, 255},
      {"model.layers.3.mlp.experts.7.some_unknown_suffix", Role::routed_expert, 3, 7},
      {"model.layers.3.mlp.experts.7.up_proj.weight.quant_state.bitsandbytes__nf4", Role::routed_expert, 3, 7},
      {"model.layers.3.mlp.experts.7.up_proj.weight.nested_absmax", Role::routed_expert, 3, 7},
      {"model.layers.3.self_attn.o_proj.weight.quant_map", Role::attention, 3, -1},
      {"model.layers.61.eh_proj.weight", Role::mtp, 61, -1},
      {"model.layers.61.shared_head.head.weight", Role::mtp, 61, -1},
      {"model.layers.61.embed_tokens.weight", Role::mtp, 61, -1},
      {"model.layers.3.something_new.weight", Role::other, 3, -1},
      {"model.layers.x.mlp.gate.weight", Role::other, -1, -1},
      {"model.layers.01.mlp.gate.weight", Role::other, -1, -1},
      {"model.layers.99999999999.mlp.gate.weight", Role::other, -1, -1},
      {"model.layers.3.mlp.experts.x.up_proj.weight", Role::other, 3, -1},
      {"model.layers.3.mlp.experts.gate_up_proj", Role::other, 3, -1},
      {"vision.tower.weight", Role::other, -1, -1},
      {"language_model.model.embed_tokens.weight", Role::embed, -1, -1},
      {"language_model.lm_head.weight", Role::head, -1, -1},
      {"language_model.model.layers.3.mlp.experts.7.up_proj.weight", Role::routed_expert, 3, 7},
      {"language_model.language_model.model.layers.3.mlp.gate.weight", Role::other, -1, -1},
      {"other_model.model.layers.3.mlp.gate.weight", Role::other, -1, -1},
      {"", Role::other, -1, -1},
  });
}

TEST_CASE("tensor name: DeepSeek's own names, V4") {
  check_names({
      {"embed.weight", Role::embed, -1, -1},
      {"head.weight", Role::head, -1, -1},
      {"norm.weight", Role::head, -1, -1},
      {"hc_head_fn", Role::head, -1, -1},
      {"layers.0.attn.wq_a.weight", Role::attention, 0, -1},
      {"layers.0.attn.wq_a.scale", Role::attention, 0, -1},
      {"layers.2.attn.indexer.compressor.wkv.weight", Role::attention, 2, -1},
      {"layers.2.attn.attn_sink", Role::attention, 2, -1},
      {"layers.2.attn_norm.weight", Role::norm, 2, -1},
      {"layers.2.ffn_norm.weight", Role::norm, 2, -1},
      {"layers.2.hc_attn_fn", Role::residual, 2, -1},
      {"layers.2.hc_ffn_scale", Role::residual, 2, -1},
      {"mtp.0.hc_ffn_base", Role::residual, 60000, -1},
      {"layers.3.ffn.gate.weight", Role::router, 3, -1},
      {"layers.3.ffn.gate.bias", Role::router, 3, -1},
      {"layers.0.ffn.gate.tid2eid", Role::router, 0, -1},
      {"layers.1.ffn.w1.weight", Role::dense_mlp, 1, -1},
      {"layers.3.ffn.shared_experts.w1.scale", Role::shared_expert, 3, -1},
      {"layers.42.ffn.experts.255.w2.scale", Role::routed_expert, 42, 255},
      {"mtp.0.ffn.experts.7.w3.weight", Role::routed_expert, kMtp0, 7},
      {"mtp.1.attn.wkv.weight", Role::attention, kMtp0 + 1, -1},
      {"mtp.0.e_proj.scale", Role::mtp, kMtp0, -1},
      {"mtp.0.h_proj.weight", Role::mtp, kMtp0, -1},
      {"mtp.0.enorm.weight", Role::mtp, kMtp0, -1},
      {"mtp.0.norm.weight", Role::mtp, kMtp0, -1},
      {"mtp.0.hc_head_base", Role::mtp, kMtp0, -1},
      {"mtp.5535.attn.wkv.weight", Role::attention, 65535, -1},
      {"mtp.5536.attn.wkv.weight", Role::mtp, -1, -1},
      {"mtp.01.attn.wkv.weight", Role::mtp, -1, -1},
      {"mtp.layers.0.mlp.experts.511.gate_proj.weight", Role::routed_expert, kMtp0, 511},
      {"mtp.fc.weight", Role::mtp, -1, -1},
      {"mtp.pre_fc_norm_hidden.weight", Role::mtp, -1, -1},
      {"layers.59999.attn_norm.weight", Role::norm, 59999, -1},
      {"layers.60000.attn_norm.weight", Role::other, -1, -1},
  });
  CHECK(format::layer_text(LayerId(61)) == "61");
  CHECK(format::layer_text(LayerId(kMtp0 + 3)) == "mtp.3");
}

TEST_CASE("tensor name: Mistral's own names") {
  check_names({
      {"tok_embeddings.weight", Role::embed, -1, -1},
      {"output.weight", Role::head, -1, -1},
      {"layers.0.attention.wkv_a_with_mqa.qscale_weight", Role::attention, 0, -1},
      {"layers.0.attention_norm.weight", Role::norm, 0, -1},
      {"layers.0.ffn_norm.weight", Role::norm, 0, -1},
      {"layers.0.feed_forward.w2.qscale_act", Role::dense_mlp, 0, -1},
      {"layers.3.gate.weight", Role::router, 3, -1},
      {"layers.3.shared_experts.w3.weight", Role::shared_expert, 3, -1},
      {"layers.60.experts.127.w1.qscale_act", Role::routed_expert, 60, 127},
      {"vision_encoder.transformer.layers.3.attention.wq.weight", Role::other, -1, -1},
  });
}

TEST_CASE("tensor name: Qwen, Mixtral, Llama-4, gpt-oss") {
  check_names({
      {"model.layers.3.mlp.shared_expert.up_proj.weight", Role::shared_expert, 3, -1},
      {"model.layers.3.mlp.shared_expert_gate.weight", Role::shared_expert, 3, -1},
      {"model.layers.3.linear_attn.A_log", Role::attention, 3, -1},
      {"model.layers.3.mlp.router.weight", Role::router, 3, -1},
      {"model.layers.3.block_sparse_moe.gate.weight", Role::router, 3, -1},
      {"model.layers.3.block_sparse_moe.e_score_correction_bias", Role::router, 3, -1},
      {"model.layers.3.block_sparse_moe.experts.7.w1.weight", Role::routed_expert, 3, 7},
      {"model.layers.3.feed_forward.router.weight", Role::router, 3, -1},
      {"model.layers.3.feed_forward.expert_bias", Role::router, 3, -1},
      {"model.layers.3.feed_forward.shared_expert.up_proj.weight", Role::shared_expert, 3, -1},
      {"model.layers.3.feed_forward.down_proj.weight", Role::dense_mlp, 3, -1},
      {"model.layers.3.feed_forward.experts.7.gate_up_proj", Role::routed_expert, 3, 7},
      {"model.layers.3.mlp.experts.7.gate_up_proj_blocks", Role::routed_expert, 3, 7},
  });
}

TEST_CASE("tensor name: what may stand before a family's names") {
  for (const std::string prefix : {"", "model.", "language_model.", "language_model.model.", "model.language_model.",
                                   "thinker.", "thinker.model."}) {
    CAPTURE(prefix);
    const std::string expert = prefix + "layers.4.mlp.experts.25.up_proj.weight";
    const std::string embed = prefix + "embed_tokens.weight";
    check_names({{expert.c_str(), Role::routed_expert, 4, 25}, {embed.c_str(), Role::embed, -1, -1}});
    CHECK(format::name_template(expert, 3) == prefix + "layers.{layer}.mlp.experts.{expert[3]}.up_proj.weight");
  }
  check_names({{"talker.model.layers.0.mlp.experts.3.up_proj.weight", Role::other, -1, -1},
               {"model.visual.blocks.0.norm1.weight", Role::other, -1, -1},
               {"model.model.layers.0.mlp.gate.weight", Role::other, -1, -1}});
}

TEST_CASE("tensor name: the number of an MTP module that is counted apart stays in the template") {
  const std::string text = format::name_template("mtp.0.ffn.experts.7.w1.weight", 2);
  CHECK(text == "mtp.0.ffn.experts.{expert[2]}.w1.weight");
  CHECK(expand_template(text, LayerId(kMtp0), ExpertId(7)) == "mtp.0.ffn.experts.7.w1.weight");
  CHECK_FALSE(format::template_entry("layers.3.ffn.experts.{expert}.w1.weight"));  // a name, not a template
}

TEST_CASE("tensor name: where a fused tensor's expert would have its number") {
  struct Fused {
    const char* name;
    const char* slice;
    bool projection;
  };
  for (const Fused& fused : std::initializer_list<Fused>{
           {"model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.experts.9.gate_up_proj", true},
           {"model.layers.3.mlp.experts.down_proj.weight", "model.layers.3.mlp.experts.9.down_proj.weight", true},
           {"model.layers.3.mlp.experts.down_proj_bias", "model.layers.3.mlp.experts.9.down_proj_bias", true},
           {"language_model.model.layers.3.feed_forward.experts.down_proj",
            "language_model.model.layers.3.feed_forward.experts.9.down_proj", true},
           {"mtp.layers.0.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.9.gate_up_proj", true},
           {"model.layers.3.mlp.experts.bias", "model.layers.3.mlp.experts.9.bias", false},
           {"model.layers.3.mlp.experts.w13_weight", "model.layers.3.mlp.experts.9.w13_weight", true},
           {"model.layers.3.mlp.experts.w1x", "model.layers.3.mlp.experts.9.w1x", false}}) {
    CAPTURE(fused.name);
    const auto parsed = format::parse_fused_name(fused.name);
    REQUIRE(parsed);
    CHECK(parsed->projection == fused.projection);
    const std::string slice = format::slice_name(fused.name, *parsed, ExpertId(9));
    CHECK(slice == fused.slice);
    const format::TensorName place = parse_tensor_name(slice);
    CHECK((place.layer == parsed->layer && place.expert == ExpertId(9) && place.role == Role::routed_expert));
  }
  const std::string long_name = "model.layers.3.mlp.experts.down_proj_" + std::string(500, 'x');
  for (const std::string_view name :
       {std::string_view("model.layers.3.mlp.experts.7.down_proj"), std::string_view("model.layers.3.mlp.experts."),
        std::string_view("model.layers.3.mlp.experts.a.b.c"), std::string_view("model.layers.x.mlp.experts.down_proj"),
        std::string_view("model.layers.3.mlp.shared_experts.down_proj"), std::string_view("experts.down_proj"),
        std::string_view(long_name)}) {
    CAPTURE(name);
    CHECK_FALSE(format::parse_fused_name(name));
  }
}

TEST_CASE("tensor name: what readers of V3's names alone would misread") {
  for (const char* name :
       {"model.layers.3.mlp.experts.7.up_proj.weight", "language_model.model.layers.3.mlp.gate.weight", "norm.weight",
        "model.layers.3.block_sparse_moe.gate.weight", "tok_embeddings.weight", "anything"})
    CHECK_MESSAGE(!format::needs_name_families(name), name);
  for (const char* name : {"model.layers.3.block_sparse_moe.experts.7.w1.weight", "layers.3.mlp.gate.weight",
                           "mtp.0.norm.weight", "model.language_model.layers.3.mlp.experts.7.up_proj.weight"})
    CHECK_MESSAGE(format::needs_name_families(name), name);
}

TEST_CASE("tensor name: whose names an expert's are") {
  using enum format::NameAuthor;
  for (const auto& [name, author] :
       {std::pair("model.layers.3.mlp.experts.7.up_proj.weight", transformers),
        std::pair("language_model.model.layers.3.mlp.experts.7.up_proj", transformers),
        std::pair("model.layers.3.block_sparse_moe.experts.7.w1.weight", transformers),
        std::pair("model.layers.3.feed_forward.experts.7.w1.weight", transformers),
        std::pair("layers.3.ffn.experts.7.w1.scale", deepseek), std::pair("mtp.0.ffn.experts.7.w1.weight", deepseek),
        std::pair("layers.3.experts.7.w1.qscale_act", mistral)})
    CHECK_MESSAGE(format::name_author(name) == author, name);
  for (const char* name :
       {"layers.3.ffn_norm.weight", "layers.3.ffn.experts.w1", "layers.3.gate.weight", "norm.weight", ""})
    CHECK_MESSAGE(!format::name_author(name), name);
}

TEST_CASE("tensor name: the order in which an MLP uses its matrices, in every family") {
  const auto use = [](const char* name) { return format::order_of_use(name); };
  for (const char* name : {"model.layers.3.mlp.experts.7.gate_proj.weight", "layers.3.ffn.experts.7.w1.scale",
                           "model.layers.3.mlp.experts.7.gate_up_proj_blocks", "layers.3.attn.wq_a.weight", "x", ""})
    CHECK_MESSAGE(use(name) == 0, name);
  for (const char* name : {"model.layers.3.mlp.up_proj.weight_scale_inv", "layers.3.experts.7.w3.qscale_weight"})
    CHECK_MESSAGE(use(name) == 1, name);
  for (const char* name : {"model.layers.3.mlp.experts.7.down_proj.weight", "layers.3.ffn.experts.7.w2.weight",
                           "model.layers.3.mlp.experts.7.down_proj", "model.layers.3.mlp.experts.7.down_proj_bias"})
    CHECK_MESSAGE(use(name) == 2, name);
}

TEST_CASE("tensor name: where a weight's scale may be") {
  const auto has = [](const char* weight, std::string_view scale) {
    const std::vector<std::string> names = format::scale_names(weight);
    return std::find(names.begin(), names.end(), scale) != names.end();
  };
  CHECK(format::scale_names("a.weight").front() == "a.weight_scale_inv");
  CHECK(has("layers.3.ffn.experts.7.w1.weight", "layers.3.ffn.experts.7.w1.scale"));
  CHECK(has("layers.3.experts.7.w1.weight", "layers.3.experts.7.w1.qscale_weight"));
  CHECK(has("a.gate_up_proj_blocks", "a.gate_up_proj_scales"));
  CHECK(has("a.gate_up_proj", "a.gate_up_proj_scale"));
}

TEST_CASE("tensor name: a template and its numbers give the name back") {
  for (const char* name :
       {"model.layers.61.mlp.experts.7.up_proj.weight", "model.layers.4.self_attn.o_proj.weight", "model.norm.weight",
        "model.layers.1.x.layers.1.y", "language_model.model.layers.61.mlp.experts.7.up_proj.weight",
        "language_model.model.layers.4.self_attn.o_proj.weight", "language_model.lm_head.weight"}) {
    const auto parsed = parse_tensor_name(name);
    CHECK(expand_template(format::name_template(name), parsed.layer, parsed.expert) == name);
  }
  CHECK(format::name_template("model.layers.61.mlp.experts.7.up_proj.weight") ==
        "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight");
}

TEST_CASE("tensor name: what wraps a language model stays in front of the template") {
  const char* name = "language_model.model.layers.6.mlp.experts.25.up_proj.weight";
  const std::string text = format::name_template(name, 3);
  CHECK(text == "language_model.model.layers.{layer}.mlp.experts.{expert[3]}.up_proj.weight");
  CHECK(format::template_entry(text) == 3);
  CHECK(expand_template(text, LayerId(6), ExpertId(25)) == name);
}

TEST_CASE("tensor name: a template of one of several experts") {
  const char* name = "model.layers.61.mlp.experts.255.up_proj.{expert[3]}";
  const std::string text = format::name_template(name, 12);
  CHECK(text == "model.layers.{layer}.mlp.experts.{expert[12]}.up_proj.{expert[3]}");
  CHECK(format::template_entry(text) == 12);
  CHECK(expand_template(text, LayerId(61), ExpertId(255)) == name);
  CHECK(format::name_template("model.layers.4.self_attn.o_proj.weight", 12) ==
        "model.layers.{layer}.self_attn.o_proj.weight");
  CHECK(format::template_entry("model.layers.{layer}.mlp.experts.{expert}.w") == 0);
}

TEST_CASE("tensor name: what only looks like a template stays as it is") {
  for (const char* text :
       {"model.layers.{layer}.mlp.experts.{expert[]}.w", "model.layers.{layer}.mlp.experts.{expert[1}.w",
        "model.layers.{layer}.mlp.experts.{expert[01]}.w", "model.layers.{layer}.mlp.experts.{expert[-1]}.w",
        "model.layers.{layer}.mlp.experts.{expert[99999999999999999999999]}.w",
        "model.layers.{layer}.mlp.experts.{expert", "model.layers.{layer}.mlp.experts.{expert[",
        "model.layers.{layer}.mlp.experts.{expert}", "model.layers.{layer}.{expert}.w", "{expert}", ""}) {
    CAPTURE(text);
    CHECK_FALSE(format::template_entry(text));
    const std::string expanded = expand_template(text, LayerId(3), ExpertId(7));
    CHECK(expanded.find("{layer}") == std::string::npos);
    CHECK((expanded.find("{expert") != std::string::npos) ==
          (std::string_view(text).find("{expert") != std::string::npos));
  }
  CHECK(expand_template("model.{layer}.x", LayerId(3), ExpertId(7)) == "model.{layer}.x");
}

TEST_CASE("tensor name: roles have names that read back") {
  for (int i = 0; i <= static_cast<int>(Role::other); ++i) {
    CHECK(format::parse_role(to_string(static_cast<Role>(i))) == static_cast<Role>(i));
  }
  CHECK_FALSE(format::parse_role("expert"));
}

}  // namespace dspack::tensor_name_test
