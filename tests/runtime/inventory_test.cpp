// Checkpoints that do not hold exactly what config.json describes.
#include <doctest/doctest.h>

#include "runtime/generate/session.h"
#include "tests/runtime/support/family.h"

namespace dspack::runtime::inventory_test {
namespace {

using test::AlteredVariant;

void check_refused(AlteredVariant& altered, ErrorKind kind, const std::vector<std::string>& parts) {
  auto loaded = test::load_folder(altered.write());
  std::string message = loaded ? "" : loaded.error().message;
  if (loaded) {  // experts are looked at when the router picks them
    Session session = test::session_of(**loaded);
    const std::vector<uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const auto done = session.logits(tokens, 0, [](std::span<const float>) {}, {});
    REQUIRE_FALSE(done);
    CHECK(done.error().kind == kind);
    message = done.error().message;
  } else {
    CHECK(loaded.error().kind == kind);
  }
  CAPTURE(message);
  CHECK(message.find('\n') == std::string::npos);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(message.find(part) != std::string::npos);
  }
}

test::RawTensor values(const std::string& name, const std::string& dtype, std::vector<uint64_t> shape, size_t bytes) {
  return {name, dtype, std::move(shape), std::string(bytes, '\x01')};
}

TEST_CASE("inventory: a tensor that nothing reads is refused, wherever it belongs") {
  const std::vector<std::string> unknown = {
      "model.layers.0.self_attn.o_proj.bias",
      "model.layers.0.self_attn.q_norm.weight",
      "model.layers.1.post_feedforward_layernorm.weight",
      "model.layers.0.mlp.gate.weight",                // a router in a dense layer
      "model.layers.1.mlp.gate_proj.weight",           // a dense MLP in a MoE layer
      "model.layers.1.mlp.experts.16.up_proj.weight",  // one more than n_routed_experts
      "model.layers.1.mlp.experts.gate_up_proj",
      "model.layers.1.mlp.shared_expert_gate.weight",
      "model.layers.0.self_attn.q_a_proj.weight",    // without q_lora_rank
      "model.layers.0.self_attn.indexer.wk.weight",  // without index_topk
      "model.layers.2.input_layernorm.weight",       // a third layer of two
      "model.embed_norm.weight",
      "lm_head.bias",
      "something",
  };
  for (const std::string& name : unknown) {
    CAPTURE(name);
    AlteredVariant altered("moonlight");
    altered.tensors.push_back(values(name, "BF16", {2}, 4));
    check_refused(altered, ErrorKind::unsupported, {"model.safetensors: " + name, "might change the result"});
  }
}

TEST_CASE("inventory: tensors of forms that cannot be run are refused by the form's name") {
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj.";
  const std::string fused = "model.layers.1.mlp.experts.";
  struct Form {
    std::string tensor;
    std::string method;
  };
  const std::vector<Form> forms = {{expert + "q_weight", "exl2"},
                                   {expert + "q_groups", "exl2"},
                                   {"model.layers.0.self_attn.o_proj.q_invperm", "exl2"},
                                   {"lm_head.trellis", "exl3"},
                                   {expert + "suh", "exl3"},
                                   {expert + "weight_scales", "eetq"},
                                   {fused + "gate_up_proj_blocks", "mxfp4"},
                                   {fused + "down_proj_scales", "mxfp4"}};
  for (const auto& [name, method] : forms) {
    CAPTURE(name);
    AlteredVariant altered("moonlight");
    altered.tensors.push_back(values(name, "I16", {2}, 4));
    check_refused(altered, ErrorKind::unsupported,
                  {"model.safetensors: " + name, "\"" + method + "\"", "cannot be run"});
  }
}

TEST_CASE("inventory: what is known to be without effect is left alone") {
  AlteredVariant altered("moonlight");
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.2.eh_proj.weight",
                           "model.layers.2.mlp.experts.3.up_proj.weight", "model.layers.0.self_attn.k_scale"}) {
    altered.tensors.push_back(values(name, "BF16", {2}, 4));
  }
  const auto loaded = test::load_folder(altered.write());
  CHECK_MESSAGE(loaded, (loaded ? "" : loaded.error().message));
}

TEST_CASE("inventory: one tensor under two names") {
  AlteredVariant altered("moonlight");
  altered.tensors.push_back(values("language_model.model.norm.weight", "BF16", {48}, 96));
  check_refused(altered, ErrorKind::invalid, {"language_model.model.norm.weight", "remove one of them"});
}

TEST_CASE("inventory: missing tensors and wrong shapes are named with their file") {
  for (const std::string name :
       {"model.norm.weight", "lm_head.weight", "model.embed_tokens.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.0.self_attn.kv_b_proj.weight"}) {
    CAPTURE(name);
    AlteredVariant missing("moonlight");
    missing.remove(name);
    check_refused(missing, ErrorKind::not_found, {name, "missing"});
    AlteredVariant turned("moonlight");
    turned.tensor(name).shape.insert(turned.tensor(name).shape.begin(), 1);
    check_refused(turned, ErrorKind::invalid, {"model.safetensors: " + name, "[1, "});
  }
  AlteredVariant expert("moonlight");
  for (int id = 0; id < 16; ++id)
    expert.remove("model.layers.1.mlp.experts." + std::to_string(id) + ".down_proj.weight");
  check_refused(expert, ErrorKind::not_found, {"layer 1, expert", "down_proj.weight"});
}

TEST_CASE("inventory: scales that are missing, of another shape, or of a type that is none") {
  const std::string weight = "model.layers.0.self_attn.o_proj.weight";
  AlteredVariant missing("v3");
  missing.remove(weight + "_scale_inv");
  check_refused(missing, ErrorKind::not_found, {weight + "_scale_inv is missing"});
  AlteredVariant expert("v3");
  expert.remove("model.layers.1.mlp.experts.15.up_proj.weight_scale_inv");
  CHECK_FALSE(test::load_folder(expert.write()));
  check_refused(expert, ErrorKind::not_found, {"experts.15.up_proj.weight_scale_inv is missing"});
  AlteredVariant shape("v3");
  shape.tensor(weight + "_scale_inv").shape = {1, 2};
  check_refused(shape, ErrorKind::invalid, {weight + "_scale_inv", "[1, 2]", "[128, 128]"});
  AlteredVariant dtype("v3");
  dtype.tensor(weight + "_scale_inv").dtype = "I32";
  check_refused(dtype, ErrorKind::unsupported, {weight + "_scale_inv", "I32"});
  AlteredVariant twice("moonlight");
  twice.tensors.push_back(values(weight + "_scale_inv", "F32", {1, 1}, 4));
  check_refused(twice, ErrorKind::invalid, {weight, "BF16", "has scales"});
  AlteredVariant packed("moonlight");
  packed.tensor(weight).name = "model.layers.0.self_attn.o_proj.weight_packed";
  check_refused(packed, ErrorKind::unsupported, {"o_proj.weight_packed"});
}

}  // namespace
}  // namespace dspack::runtime::inventory_test
