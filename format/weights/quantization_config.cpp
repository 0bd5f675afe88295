#include "format/weights/quantization_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "format/config_fields.h"
#include "format/weights/refused_forms.h"

namespace dspack::format {

namespace {

constexpr uint32_t kMaxBlock = 1U << 20;

// Weights are multiplied as they are stored, activations stay FP32, and the KV cache is what --kv-dtype says. So how
// other programs would round activations and the cache, and which modules were converted, is without effect.
constexpr std::array<std::string_view, 5> kFp8WithoutEffect = {"activation_scheme", "modules_to_not_convert",
                                                               "ignored_layers", "dequantize", "kv_cache_scheme"};
constexpr std::array<std::string_view, 7> kCompressedWithoutEffect = {
    "ignore",   "quantization_status", "global_compression_ratio", "version", "registry_requires_subclass",
    "observer", "kv_cache_scheme"};
constexpr std::array<std::string_view, 3> kGroupWithoutEffect = {"targets", "input_activations", "output_activations"};
constexpr std::array<std::string_view, 7> kWeightsWithoutEffect = {
    "observer", "observer_kwargs", "actorder", "dynamic", "group_size", "scale_dtype", "zp_dtype"};

std::optional<BlockSize> read_block(ConfigFields& fields, std::string_view key) {
  const Json* block = fields.find(key);
  if (block == nullptr) return std::nullopt;
  const auto good = [](const Json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMaxBlock;
  };
  if (!block->is_array() || block->size() != 2 || !good((*block)[0]) || !good((*block)[1])) {
    fields.fail(ErrorKind::invalid, key, "expected two whole numbers, as in [128, 128]");
    return std::nullopt;
  }
  return BlockSize{.out = (*block)[0].get<uint32_t>(), .in = (*block)[1].get<uint32_t>()};
}

void only(ConfigFields& fields, std::string_view key, const Json& value) {
  const Json* found = fields.find(key);
  if (found != nullptr && *found != value) {
    fields.fail(ErrorKind::unsupported, key, fmt::format("only {} can be run", value.dump()));
  }
}

// "quant_method": "fp8", as DeepSeek and transformers write it.
std::optional<BlockSize> read_fp8(ConfigFields& fields) {
  only(fields, "fmt", "e4m3");
  // ue8m0 says that the scales are powers of two. Their tensors hold them, as F32 or as F8_E8M0.
  const std::string scales = fields.text("scale_fmt", "float");
  if (scales != "float" && scales != "ue8m0") {
    fields.fail(ErrorKind::unsupported, "scale_fmt", R"(only "ue8m0" and "float" can be run)");
  }
  const std::optional<BlockSize> block = read_block(fields, "weight_block_size");
  fields.refuse_others(kFp8WithoutEffect);
  return block;
}

// Of compressed-tensors: how numbers are written.
constexpr std::array<std::string_view, 6> kCompressedFormats = {"float-quantized",      "int-quantized",
                                                                "pack-quantized",       "nvfp4-pack-quantized",
                                                                "mxfp4-pack-quantized", "mixed-precision"};

void only_formats(ConfigFields& fields) {
  const std::string format = fields.text("format", kCompressedFormats.front());
  if (std::ranges::find(kCompressedFormats, format) == kCompressedFormats.end()) {
    fields.fail(ErrorKind::unsupported, "format",
                fmt::format("only {} can be run", fmt::join(kCompressedFormats, ", ")));
  }
}

// Of weights in groups: integers with or without zero points, and FP4.
Quantization read_groups(ConfigFields& weights, uint32_t bits, std::string_view strategy) {
  Quantization found{.block = {}, .bits = bits, .group = {}, .symmetric = weights.flag("symmetric", true)};
  if (strategy == "group" || strategy == "tensor_group") found.group = weights.integer("group_size", 1, kMaxBlock);
  return found;
}

void check_strategy(ConfigFields& weights, const std::string& type, uint32_t bits, const std::string& strategy) {
  constexpr std::array<std::string_view, 5> kStrategies = {"tensor", "channel", "block", "group", "tensor_group"};
  const bool is_known = std::ranges::find(kStrategies, strategy) != kStrategies.end();
  const bool is_grouped = strategy == "group" || strategy == "tensor_group";
  const bool is_refused = (type == "int" && strategy != "channel" && strategy != "group") ||
                          (type == "float" && bits == 8 && is_grouped) || (type == "float" && bits == 4 && !is_grouped);
  if (!is_known || is_refused)
    weights.fail(ErrorKind::unsupported, "strategy", fmt::format("it cannot be run for {} bits of \"{}\"", bits, type));
}

// One entry of "config_groups": how the weights of some layers are stored.
Result<Quantization> read_group(const Json& group, const std::string& place) {
  ConfigFields fields(group, place);
  const Json* weights = fields.object("weights");
  only_formats(fields);
  fields.refuse_others(kGroupWithoutEffect);
  if (fields.error()) return *fields.error();
  if (weights == nullptr) return Quantization();
  ConfigFields inner(*weights, place + R"( "weights")");
  const uint32_t bits = inner.integer("num_bits", 1, 64, 8);
  if (bits != 4 && bits != 8) inner.fail(ErrorKind::unsupported, "num_bits", "only 4 and 8 can be run");
  const std::string type = inner.text("type", "float");
  if (type != "float" && type != "int")
    inner.fail(ErrorKind::unsupported, "type", R"(only "float" and "int" can be run)");
  const std::string strategy = inner.text("strategy", "tensor");
  const std::optional<BlockSize> block = read_block(inner, "block_structure");
  check_strategy(inner, type, bits, strategy);
  if (type == "float") only(inner, "symmetric", true);
  Quantization found = read_groups(inner, bits, strategy);
  inner.refuse_others(kWeightsWithoutEffect);
  if (inner.error()) return *inner.error();
  if (type == "float" && bits == 8) found = {};
  if (strategy == "block") found.block = block;
  return found;
}

// What the groups that say something of one kind agree on.
template <class T>
T agreed(const std::vector<T>& said) {
  if (said.empty() || std::ranges::any_of(said, [&](const T& one) { return one != said.front(); })) return T();
  return said.front();
}

// "quant_method": "compressed-tensors". Which layers a group is for is a list of patterns, and not needed: 8-bit floats
// in blocks and codes in groups are told apart by their tensors, and where groups of one kind differ, sizes are left to
// the scales' shapes.
Result<Quantization> read_compressed(ConfigFields& fields) {
  only_formats(fields);
  only(fields, "sparsity_config", Json::object());
  only(fields, "transform_config", Json::object());
  const Json* groups = fields.object("config_groups");
  fields.refuse_others(kCompressedWithoutEffect);
  if (fields.error()) return *fields.error();
  if (groups == nullptr) return Quantization();
  std::vector<std::optional<BlockSize>> blocks;
  std::vector<Quantization> codes;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) {
      fields.fail(ErrorKind::invalid, "config_groups", "expected an object of objects");
      return *fields.error();
    }
    TRY_ASSIGN(const auto one, read_group(group, fields.place() + R"(, a group of "config_groups")"));
    if (one.block) blocks.push_back(one.block);
    if (one.bits) codes.push_back(one);
  }
  Quantization found = agreed(codes);
  found.block = agreed(blocks);
  return found;
}

// "quant_method": "modelopt", as NVIDIA writes it. FP8 beside NVFP4 is seen from the tensors.
Quantization read_modelopt(ConfigFields& fields) {
  constexpr std::array<std::string_view, 4> kAlgorithms = {"NVFP4", "FP8", "MIXED_PRECISION", "W4A16_NVFP4"};
  constexpr std::array<std::string_view, 10> kWithoutEffect = {
      "exclude_modules", "ignore",         "kv_cache_quant_algo", "kv_cache_scheme", "producer",
      "config_groups",   "moe_quant_algo", "quantized_layers",    "quant_library",   "version"};
  const std::string algorithm = fields.text("quant_algo", "");
  if (std::ranges::find(kAlgorithms, algorithm) == kAlgorithms.end())
    fields.fail(ErrorKind::unsupported, "quant_algo", fmt::format("only {} can be run", fmt::join(kAlgorithms, ", ")));
  Quantization found;
  const uint32_t group = fields.integer("group_size", 1, kMaxBlock, 16);
  if (algorithm == "NVFP4" || algorithm == "W4A16_NVFP4") found.group = group;
  fields.refuse_others(kWithoutEffect);
  return found;
}

// -1: a column of weights is one group.
std::optional<uint32_t> read_group_size(ConfigFields& fields) {
  const Json* size = fields.find("group_size");
  if (size != nullptr && *size == -1) return std::nullopt;
  return fields.integer("group_size", 1, kMaxBlock);
}

// "quant_method": "awq", as AutoAWQ and transformers write it.
Quantization read_awq(ConfigFields& fields) {
  constexpr std::array<std::string_view, 5> kWithoutEffect = {"modules_to_not_convert", "backend", "exllama_config",
                                                              "do_fuse", "fuse_max_seq_len"};
  Quantization found{.bits = fields.integer("bits", 1, 32), .group = read_group_size(fields)};
  if (found.bits != 4) fields.fail(ErrorKind::unsupported, "bits", "only 4 can be run");
  std::string version = fields.text("version", "gemm");
  std::ranges::transform(version, version.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  if (version != "gemm") fields.fail(ErrorKind::unsupported, "version", R"(only "gemm" can be run)");
  only(fields, "zero_point", true);
  fields.refuse_others(kWithoutEffect);
  return found;
}

// "quant_method": "gptq", as AutoGPTQ, GPTQModel and transformers write it. How codes were found is without effect.
Quantization read_gptq(ConfigFields& fields) {
  constexpr std::array<std::string_view, 20> kWithoutEffect = {"damp_percent",
                                                               "damp_auto_increment",
                                                               "true_sequential",
                                                               "static_groups",
                                                               "model_name_or_path",
                                                               "dataset",
                                                               "tokenizer",
                                                               "block_name_to_quantize",
                                                               "model_seqlen",
                                                               "model_file_base_name",
                                                               "batch_size",
                                                               "pad_token_id",
                                                               "use_cuda_fp16",
                                                               "max_input_length",
                                                               "exllama_config",
                                                               "cache_block_outputs",
                                                               "use_exllama",
                                                               "module_name_preceding_first_block",
                                                               "meta",
                                                               "modules_in_block_to_quantize"};
  const uint32_t bits = fields.integer("bits", 1, 32);
  Quantization found{.bits = bits, .group = read_group_size(fields)};
  if (bits != 4 && bits != 8) fields.fail(ErrorKind::unsupported, "bits", "only 4 and 8 can be run");
  (void)fields.flag("sym", true);
  (void)fields.flag("lm_head", false);
  only(fields, "is_marlin_format", false);
  only(fields, "pack_dtype", "int32");
  only(fields, "dynamic", Json::object());  // other bits and groups for some modules
  found.ordered = fields.flag("desc_act", false);
  const std::string format = fields.text("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2")
    fields.fail(ErrorKind::unsupported, "checkpoint_format", R"(only "gptq" and "gptq_v2" can be run)");
  found.zero_offset = format == "gptq" ? 1 : 0;
  fields.refuse_others(kWithoutEffect);
  return found;
}

// "quant_method": "bitsandbytes", as transformers writes it. What a code means is beside the weights.
Quantization read_bitsandbytes(ConfigFields& fields) {
  constexpr std::array<std::string_view, 9> kWithoutEffect = {"_load_in_4bit",
                                                              "_load_in_8bit",
                                                              "bnb_4bit_compute_dtype",
                                                              "bnb_4bit_use_double_quant",
                                                              "llm_int8_enable_fp32_cpu_offload",
                                                              "llm_int8_has_fp16_weight",
                                                              "llm_int8_skip_modules",
                                                              "llm_int8_threshold",
                                                              "modules_to_not_convert"};
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
  fields.refuse_others(kWithoutEffect);
  return found;
}

}  // namespace

Json quantization_json(const Quantization& said) {
  Json json = Json::object();
  const auto add = [&](const char* name, const auto& value) {
    if (value) json[name] = *value;
  };
  if (said.block) json["block"] = {said.block->out, said.block->in};
  add("bits", said.bits);
  add("group", said.group);
  add("symmetric", said.symmetric);
  add("zero_offset", said.zero_offset);
  add("ordered", said.ordered);
  add("four_bits", said.four_bits);
  return json;
}

Result<Quantization> parse_quantization(const Json& object, std::string_view place) {
  ConfigFields fields(object, std::string(place));
  const std::string method = fields.text("quant_method", "");
  Quantization found;
  if (method == "fp8") {
    found.block = read_fp8(fields);
  } else if (method == "compressed-tensors") {
    TRY_ASSIGN(found, read_compressed(fields));
  } else if (method == "modelopt") {
    found = read_modelopt(fields);
  } else if (method == "awq") {
    found = read_awq(fields);
  } else if (method == "gptq") {
    found = read_gptq(fields);
  } else if (method == "bitsandbytes") {
    found = read_bitsandbytes(fields);
  } else if (const std::string_view refusal = refusal_of(method); !refusal.empty()) {
    fields.fail(ErrorKind::unsupported, "quant_method", refusal);
  } else {
    fields.fail(
        ErrorKind::unsupported, "quant_method",
        R"(only "fp8", "compressed-tensors", "modelopt", "awq", "gptq", "bitsandbytes" and unquantised weights )"
        "can be run");
  }
  if (fields.error()) return *fields.error();
  return found;
}

}  // namespace dspack::format
