// What is expected of config.json alone, beside checkpoints that are there.
#include "runtime/model/expected_tensors.h"

#include <doctest/doctest.h>

#include "runtime/generate/loaded_model.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/open_checkpoint.h"

namespace dspack::runtime::expected_tensors_test {
namespace {

/// Whether a plain run reads it.
bool is_read(const format::TensorEntry& tensor, const ModelConfig& config) {
  return !(tensor.place.layer && tensor.place.layer->value >= config.layers) &&
         tensor.name.find("inv_freq") == std::string::npos;
}

void check_same(const std::filesystem::path& folder) {
  CAPTURE(folder.string());
  const test::OpenedCheckpoint there(folder);
  const auto expected = expected_tensors(there.config);
  REQUIRE_MESSAGE(expected, (expected ? "" : expected.error().message));
  size_t count = 0;
  for (const format::TensorEntry& tensor : there.checkpoint().tensors()) {
    if (!is_read(tensor, there.config)) continue;
    CAPTURE(tensor.name);
    ++count;
    const format::TensorEntry* const found = expected->find(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(found->shape == tensor.shape);
    CHECK(found->dtype == tensor.dtype);
    CHECK(found->range.size() == tensor.range.size());
  }
  CHECK(expected->tensors().size() == count);
}

}  // namespace

TEST_CASE("expected tensors: names, shapes and types are those of the checkpoints that there are") {
  for (const char* variant : {"v2", "v2-lite", "v2.5", "v3", "v3.1", "v3.2", "moonlight", "fp8-blocks", "glm-4.7-flash",
                              "v3.2-sparse", "glm-5", "glm-5.2"})
    check_same(test::family_folder() / variant);
  check_same(std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3");
}

TEST_CASE("expected tensors: of a form whose sizes config.json does not tell, nothing is guessed") {
  test::OpenedCheckpoint there(std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3");
  there.config.expected.kind = format::ExpectedForm::Kind::unknown;
  const auto unknown = expected_tensors(there.config);
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().kind == ErrorKind::unsupported);
  for (const char* variant : {"fp8-channel", "fp8-tensor"})
    CHECK_FALSE(expected_tensors(test::OpenedCheckpoint(test::family_folder() / variant).config));
}

format::Checkpoint expected_of(const char* quantization, const char* beside = "") {
  format::Json json = test::read_json(test::family_folder() / "v2.5" / "config.json");
  if (*quantization != '\0') json["quantization_config"] = format::Json::parse(quantization);
  return expected_tensors(parse_model_config(json.dump(), beside).value()).value();
}

TEST_CASE("expected tensors: NVIDIA's NVFP4 and Kimi's four bits, but for the modules that config.json names") {
  const std::string attention = "model.layers.1.self_attn.o_proj.";
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj.";
  const format::Checkpoint plain = expected_of("");
  const std::vector<uint64_t> shape = plain.find(expert + "weight")->shape;
  const format::Checkpoint nvfp4 = expected_of(
      "",
      R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["model.layers.1.self_attn*"]}})");
  CHECK(nvfp4.find(expert + "weight")->range.size() == shape[0] * shape[1] / 2);
  CHECK(nvfp4.find(expert + "weight_scale")->range.size() == shape[0] * shape[1] / 16);
  CHECK(nvfp4.find(expert + "weight_scale_2")->dtype == Dtype::f32);
  CHECK(nvfp4.find(attention + "weight")->dtype == Dtype::bf16);
  CHECK(nvfp4.find("model.layers.0.self_attn.o_proj.weight")->dtype == Dtype::u8);
  const format::Checkpoint packed = expected_of(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": true,
    "strategy": "group", "group_size": 32}}}, "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]})");
  CHECK(packed.find(expert + "weight_packed")->range.size() == shape[0] * shape[1] / 2);
  CHECK(packed.find(expert + "weight_scale")->range.size() == shape[0] * ((shape[1] + 31) / 32) * 2);
  CHECK(packed.find(attention + "weight") != nullptr);
  CHECK(packed.find("model.layers.0.mlp.gate_proj.weight") != nullptr);
  CHECK(packed.find("model.layers.1.mlp.shared_experts.gate_proj.weight") != nullptr);
}

TEST_CASE("expected tensors: a config.json does not decide how much memory a plan takes") {
  test::OpenedCheckpoint there(std::filesystem::path(DSPACK_TEST_DATA) / "tiny-v3");
  there.config.layers = 1 << 20;
  CHECK(expected_tensors(there.config).error().kind == ErrorKind::invalid);
  there.config.layers = 4;
  there.config.hidden = there.config.vocab = UINT32_MAX;
  CHECK_FALSE(expected_tensors(there.config));
}

}  // namespace dspack::runtime::expected_tensors_test
