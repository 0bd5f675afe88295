// What config.json says of how weights are stored, in the words of the programs that write it.
#include <doctest/doctest.h>

#include "format/weights/quantization_config.h"

namespace dspack::quantization_config_test {
namespace {

using format::Json;
using format::Quantization;

Result<format::QuantizationReading> parse(const char* text) {
  return format::parse_quantization(Json::parse(text), "config.json");
}

struct Said {
  const char* text;
  Quantization stored;
  size_t notes = 0;
};

// Sources: the programs' own writers (GPTQModel 7.7, AutoRound 0.16.1, transformers, modelopt, Quark, FBGEMM) and the
// released config.json files that they have left.
TEST_CASE("quantisation: what the programs write is read, and what nobody knows is a note") {
  const std::vector<Said> cases = {
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false})",
       {.bits = 4, .group = 128, .ordered = false, .zero_offset = 1}},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq", "format": "gptq",
           "method": "gptq", "pack_dtype": "int32", "lm_head": false, "act_group_aware": true, "mse": 0.0,
           "dynamic": {"-:.*self_attn.*": {}}, "meta": {"quantizer": ["gptqmodel:5.6"]}})",
       {.bits = 4, .group = 32, .ordered = false, .zero_offset = 1}},
      {R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "format": "gptq_v2", "hyb_act": 1})",
       {.bits = 8, .ordered = false, .zero_offset = 0},
       1},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true, "autoround_version": "0.4.5",
           "data_type": "int", "iters": 200, "nsamples": 512, "seqlen": 2048, "scale_dtype": "torch.float16",
           "low_gpu_mem_usage": true, "lr": 0.005, "amp": true})",
       {.bits = 4, .group = 32, .ordered = false, .zero_offset = 1}},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": true, "data_type": "int",
           "packing_format": "auto_round:auto_gptq", "autoround_version": "0.10.0",
           "extra_config": {"lm_head": {"bits": 16, "data_type": "fp"}, "a": {"bits": 4, "group_size": 32}}})",
       {.bits = 4, .group = 32, .zero_offset = 1}},
      {R"({"quant_method": "intel/auto-round", "bits": 4, "group_size": 64, "backend": "auto_round:gptq:exllamav2"})",
       {.bits = 4, .group = 64, .zero_offset = 1}},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 64, "packing_format": "auto_round", "sym": false})",
       {.bits = 4, .group = 64, .zero_offset = 0}},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 64, "packing_format": "auto_round:auto_awq"})",
       {.bits = 4, .group = 64}},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM", "zero_point": true})",
       {.bits = 4, .group = 128}},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "checkpoint_format": "gemm", "format": "gemm",
           "method": "awq", "pack_dtype": "int32", "sym": false, "desc_act": false, "lm_head": false,
           "meta": {"quantizer": ["gptqmodel:7.7.0"]}})",
       {.bits = 4, .group = 128}},
      {R"({"quant_method": "moe_wna16", "linear_quant_method": "awq", "bits": 4, "group_size": 64})",
       {.bits = 4, .group = 64}},
      {R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]})", {}},
      {R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8"})",
       {.group = 16}},
      {R"({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ", "group_size": 16, "has_zero_point": false,
           "pre_quant_scale": true})",
       {.group = 16}},
      {R"({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"})", {}},
      {R"({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"})", {}},
      {R"({"quant_method": "modelopt", "quant_algo": "W8A16"})", {}},
      {R"({"quant_method": "modelopt", "quant_algo": "mxfp4"})", {}},
      {R"({"quant_method": "modelopt", "quant_algo": "W4A8_MXFP4_FP8"})", {}},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 16, "sym": true, "data_type": "nv_fp",
           "packing_format": "auto_round:llm_compressor", "act_bits": 4, "act_data_type": "nv_fp4_with_static_gs",
           "extra_config": {"gate": {"bits": 16, "data_type": "float"}}})",
       {.group = 16}},
      {R"({"quant_method": "auto-round", "bits": 8, "group_size": -1, "data_type": "fp", "fmt": "e4m3",
           "packing_format": "auto_round:fp8_static", "activation_scheme": "static"})",
       {}},
      {R"({"quant_method": "auto-round", "bits": 8, "group_size": [128, 128], "data_type": "fp", "fmt": "e4m3",
           "packing_format": "auto_round:fp8", "weight_block_size": [128, 128]})",
       {.block = format::BlockSize{128, 128}}},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": false})",
       {.bits = 4, .group = 64}},
      {R"({"quant_method": "compressed-tensors", "format": "mxfp8-quantized", "config_groups": {"group_0": {"targets":
           ["Linear"], "format": "mxfp8-quantized", "weights": {"num_bits": 8, "type": "float", "symmetric": true,
           "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}}}})",
       {}},
      {R"({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8", "symmetric": true}}})",
       {.symmetric = true},
       1},
      {R"({"quant_method": "quark", "export": {"pack_method": "reorder"}, "global_quant_config":
           {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}, "algo_config": null})",
       {},
       2},
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets":
           ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
           "group_size": 32, "actorder": "static"}}}, "ignore": ["lm_head"], "zero_dummy": 5})",
       {.bits = 4, .group = 32, .symmetric = true},
       1},
  };
  for (const Said& said : cases) {
    CAPTURE(said.text);
    const auto found = parse(said.text);
    REQUIRE_MESSAGE(found.has_value(), found.error().message);
    CHECK(quantization_json(found->stored) == quantization_json(said.stored));
    CHECK(found->notes.size() == said.notes);
  }
}

struct Refused {
  const char* text;
  std::string_view reason;
};

TEST_CASE("quantisation: what changes the meaning of complete tensors is refused") {
  const std::vector<Refused> cases = {
      {R"({"quant_method": "gptq", "bits": 3, "group_size": 128})", "\"bits\" is 3"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:.*": {"bits": 8}}})", "dynamic"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"})", "gptq_v2"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "adapter": {"type": "lora"}})", "adapter"},
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "rotation": "hadamard"})", "rotated"},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:auto_gptq",
           "extra_config": {"a": {"bits": 8}}})",
       "some modules"},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:other"})",
       "packing_format"},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "packing_format": "auto_round:llm_compressor",
           "data_type": "nf4"})",
       "data_type"},
      {R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "super_bits": 6})", "super_bits"},
      {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"})", "gemm"},
      {R"({"quant_method": "moe_wna16", "linear_quant_method": "marlin", "bits": 4})", "linear_quant_method"},
      {R"({"quant_method": "quark", "algo_config": [{"name": "rotation", "online_r1": true}]})", "rotated"},
      {R"({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}})", "transformed"},
      {R"({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}})", "sparse"},
      {R"({"quant_method": "paroquant", "bits": 4})", "rotated"},
      {R"({"quant_method": "exl3"})", "trellis"},
      {R"({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})", "quant_algo"},
  };
  for (const Refused& refused : cases) {
    CAPTURE(refused.text);
    const auto found = parse(refused.text);
    REQUIRE_FALSE(found.has_value());
    CAPTURE(found.error().message);
    CHECK(found.error().message.starts_with("config.json: "));
    CHECK(found.error().message.find(refused.reason) != std::string::npos);
  }
}

TEST_CASE("quantisation: hf_quant_config.json says it where config.json does not") {
  const Json plain = Json::object();
  const Json own = {{"quantization_config", {{"quant_method", "fp8"}}}};
  const char* beside =
      R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}})";
  CHECK(format::find_quantization(plain, "").value().is_null());
  CHECK(format::find_quantization(own, beside).value()["quant_method"] == "fp8");
  const auto found = format::find_quantization(plain, beside);
  REQUIRE(found.has_value());
  CHECK(format::parse_quantization(*found, "x")->stored.group == 16);
  CHECK(format::find_quantization(plain, R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})")
            .value()
            .is_null());
  CHECK_FALSE(format::find_quantization(plain, R"({"quantization": 4})").has_value());
  CHECK_FALSE(format::find_quantization(plain, "version https://git-lfs.github.com/spec/v1\n").has_value());
}

}  // namespace
}  // namespace dspack::quantization_config_test
