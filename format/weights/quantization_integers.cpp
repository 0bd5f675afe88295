#include "format/weights/quantization_integers.h"

#include <algorithm>
#include <array>

#include "format/weights/quantization_fields.h"

namespace dspack::format {

namespace {

// How codes were found, how they are computed, and which modules were left unconverted.
constexpr std::array<std::string_view, 52> kWithoutEffect = {"_load_in_4bit",
                                                             "_load_in_8bit",
                                                             "act_bits",
                                                             "act_data_type",
                                                             "act_dynamic",
                                                             "act_group_aware",
                                                             "act_group_size",
                                                             "act_sym",
                                                             "amp",
                                                             "autoround_version",
                                                             "backend",
                                                             "batch_size",
                                                             "block_name_to_quantize",
                                                             "bnb_4bit_compute_dtype",
                                                             "bnb_4bit_use_double_quant",
                                                             "cache_block_outputs",
                                                             "damp_auto_increment",
                                                             "damp_percent",
                                                             "dataset",
                                                             "do_fuse",
                                                             "enable_minmax_tuning",
                                                             "enable_quanted_input",
                                                             "exllama_config",
                                                             "fuse_max_seq_len",
                                                             "gradient_accumulate_steps",
                                                             "iters",
                                                             "llm_int8_enable_fp32_cpu_offload",
                                                             "llm_int8_has_fp16_weight",
                                                             "llm_int8_skip_modules",
                                                             "llm_int8_threshold",
                                                             "low_gpu_mem_usage",
                                                             "lr",
                                                             "max_input_length",
                                                             "meta",
                                                             "minmax_lr",
                                                             "model_file_base_name",
                                                             "model_name_or_path",
                                                             "model_seqlen",
                                                             "module_name_preceding_first_block",
                                                             "modules_in_block_to_quantize",
                                                             "modules_to_not_convert",
                                                             "mse",
                                                             "nsamples",
                                                             "pad_token_id",
                                                             "scale_dtype",
                                                             "seqlen",
                                                             "static_groups",
                                                             "to_quant_block_names",
                                                             "tokenizer",
                                                             "true_sequential",
                                                             "use_cuda_fp16",
                                                             "use_exllama"};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return text;
}

/// How codes are packed, in a program's own word: the value of the first key that is present, in lower case.
std::string packing_of(ConfigFields& fields, std::initializer_list<std::string_view> keys, std::string_view fallback) {
  std::string found;
  for (const std::string_view key : keys) {
    const std::string said = lower(fields.text(key, ""));
    if (found.empty()) found = said;
  }
  return found.empty() ? std::string(fallback) : found;
}

uint32_t read_bits(ConfigFields& fields, std::initializer_list<uint32_t> known) {
  const uint32_t bits = fields.integer("bits", 1, 32);
  if (std::ranges::find(known, bits) == known.end())
    fields.fail(ErrorKind::unsupported, "bits", known.size() == 1 ? "only 4 can be run" : "only 4 and 8 can be run");
  return bits;
}

// GPTQModel's "dynamic": patterns of modules that are left unconverted ("-:") or stored differently.
void check_dynamic(ConfigFields& fields) {
  const Json* dynamic = fields.object("dynamic");
  if (dynamic == nullptr) return;
  for (const auto& [pattern, value] : dynamic->items()) {
    if (!pattern.starts_with("-:"))
      fields.fail(ErrorKind::unsupported, "dynamic", "other bits and groups for some modules cannot be run");
  }
}

// AutoRound's "extra_config": modules that are left unconverted (16 bits and more) or stored differently.
void check_extra(ConfigFields& fields, const Quantization& stored) {
  const Json* extra = fields.object("extra_config");
  if (extra == nullptr) return;
  const auto differs = [](const Json& module, const char* key, const Json& value) {
    const auto found = module.find(key);
    return found != module.end() && !found->is_null() && *found != value;
  };
  for (const auto& [name, module] : extra->items()) {
    if (!module.is_object()) {
      fields.fail(ErrorKind::invalid, "extra_config", "expected an object of objects");
      return;
    }
    const auto bits = module.find("bits");
    if (bits != module.end() && bits->is_number_unsigned() && bits->get<uint64_t>() >= 16) continue;
    const Json group = stored.group ? Json(*stored.group) : Json(-1);
    if (differs(module, "bits", *stored.bits) || differs(module, "group_size", group))
      fields.fail(ErrorKind::unsupported, "extra_config", "other bits and groups for some modules cannot be run");
  }
}

void check_gptq(ConfigFields& fields) {
  (void)fields.flag("sym", true);  // zero points are stored anyway
  (void)fields.flag("lm_head", false);
  only(fields, "is_marlin_format", false);
  only(fields, "pack_dtype", "int32");
  check_dynamic(fields);
}

}  // namespace

// As AutoAWQ and transformers write it, and GPTQModel, which uses GPTQ's words for its settings.
Quantization read_awq(ConfigFields& fields, std::vector<std::string>& notes) {
  Quantization found{.bits = read_bits(fields, {4}), .group = read_group_size(fields)};
  const std::string packing = packing_of(fields, {"version", "checkpoint_format", "format"}, "gemm");
  if (packing != "gemm") fields.fail(ErrorKind::unsupported, "version", R"(only "gemm" can be run)");
  (void)fields.flag("zero_point", true);  // zero points are stored, even if each is the middle of the range
  (void)fields.text("method", "awq");
  (void)fields.flag("desc_act", false);  // AWQ does not reorder columns
  check_gptq(fields);
  pass_over(fields, kWithoutEffect, notes);
  return found;
}

// As AutoGPTQ, GPTQModel, AutoRound (its export as GPTQ) and transformers write it.
Quantization read_gptq(ConfigFields& fields, std::vector<std::string>& notes) {
  Quantization found{.bits = read_bits(fields, {4, 8}), .group = read_group_size(fields)};
  check_gptq(fields);
  found.ordered = fields.flag("desc_act", false);
  const std::string packing = packing_of(fields, {"checkpoint_format", "format"}, "gptq");
  if (packing != "gptq" && packing != "gptq_v2")
    fields.fail(ErrorKind::unsupported, "checkpoint_format", R"(only "gptq" and "gptq_v2" can be run)");
  found.zero_offset = packing == "gptq" ? 1 : 0;
  (void)fields.text("method", "gptq");
  only(fields, "data_type", "int");
  pass_over(fields, kWithoutEffect, notes);
  return found;
}

// AutoRound's floats: the tensors of compressed-tensors ("auto_round:llm_compressor"), or FP8 with a scale per row
// ("fp8_static") or block ("fp8").
Quantization read_auto_round_floats(ConfigFields& fields, std::vector<std::string>& notes) {
  const uint32_t bits = read_bits(fields, {4, 8});
  const Json* group = fields.find("group_size");
  Quantization found{.block = read_block(fields, "weight_block_size")};
  if (group != nullptr && group->is_array()) found.block = read_block(fields, "group_size");
  if (bits == 4 && group != nullptr && group->is_number_unsigned()) found.group = read_group_size(fields);
  const std::string type = fields.text("data_type", "fp");
  if (type != "nv_fp" && type != "mx_fp" && type != "fp" && type != "int")
    fields.fail(ErrorKind::unsupported, "data_type", R"(only "int", "fp", "mx_fp" and "nv_fp" can be run)");
  only(fields, "fmt", "e4m3");
  only(fields, "sym", true);
  (void)fields.text("activation_scheme", "");
  (void)fields.object("extra_config");  // each module's tensors show how it is stored
  pass_over(fields, kWithoutEffect, notes);
  return found;
}

// As AutoRound writes it: the tensors of GPTQ or of AWQ, by "packing_format" (auto_round, inference/backend.py:
// auto_gptq stores zero points less one, auto_round and gptqmodel unchanged).
Quantization read_auto_round(ConfigFields& fields, std::vector<std::string>& notes) {
  const std::string packing = packing_of(fields, {"packing_format", "backend"}, "auto_round");
  if (packing == "auto_round:llm_compressor" || packing.starts_with("auto_round:fp8"))
    return read_auto_round_floats(fields, notes);
  Quantization found{.bits = read_bits(fields, {4, 8}), .group = read_group_size(fields)};
  if (packing == "auto_round" || packing.starts_with("auto_round:gptqmodel")) {
    found.zero_offset = 0;
  } else if (packing.find("gptq") != std::string::npos) {
    found.zero_offset = 1;
  } else if (packing.find("awq") == std::string::npos) {
    fields.fail(
        ErrorKind::unsupported, "packing_format",
        R"(only "auto_round", "auto_round:auto_gptq", "auto_round:gptqmodel" and "auto_round:auto_awq" can be run)");
  }
  (void)fields.flag("sym", true);
  only(fields, "data_type", "int");
  if (!fields.error()) check_extra(fields, found);
  pass_over(fields, kWithoutEffect, notes);
  return found;
}

// Named after vLLM's method for experts: the tensors of AWQ or of GPTQ.
Quantization read_wna16(ConfigFields& fields, std::vector<std::string>& notes) {
  const std::string tensors = fields.text("linear_quant_method", "awq");
  if (tensors == "gptq") return read_gptq(fields, notes);
  only(fields, "linear_quant_method", "awq");
  return read_awq(fields, notes);
}

// As transformers writes it. The meaning of codes is stored next to the weights.
Quantization read_bitsandbytes(ConfigFields& fields, std::vector<std::string>& notes) {
  const bool is_four = fields.flag("load_in_4bit", false);
  const bool is_eight = fields.flag("load_in_8bit", false);
  if (is_four == is_eight)
    fields.fail(ErrorKind::invalid, "load_in_4bit", "one of \"load_in_4bit\" and \"load_in_8bit\" must be true");
  only(fields, "bnb_4bit_quant_storage", "uint8");
  Quantization found{.bits = is_four ? 4 : 8};
  const std::string kind = fields.text("bnb_4bit_quant_type", "");
  if (!kind.empty() && kind != "nf4" && kind != "fp4")
    fields.fail(ErrorKind::unsupported, "bnb_4bit_quant_type", R"(only "nf4" and "fp4" can be run)");
  if (is_four && !kind.empty()) found.four_bits = kind == "nf4" ? "nf4" : "fp4";
  pass_over(fields, kWithoutEffect, notes);
  return found;
}

}  // namespace dspack::format
