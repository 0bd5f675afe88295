#include "format/weights/quantization_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "format/config_fields.h"
#include "format/weights/refused_forms.h"

namespace dspack::format {
namespace {

// Shared by all methods: a method's own keys are read one by one; the others are ignored with a note, because a
// weight's type and shape are those of its tensors.

constexpr uint32_t kMaxBlock = 1U << 20;

// Parts of keys about weights that were modified, or whose scales are coded themselves.
constexpr std::array<std::string_view, 9> kChangesMeaning = {"rotat",  "hadamard", "transform",  "quarot", "spinquant",
                                                             "permut", "sparsity", "super_bits", "adapter"};

// Keys that change the meaning of codes, if the method does not read them.
constexpr std::array<std::string_view, 4> kOfCodes = {"bits", "sym", "symmetric", "zero_point"};

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "none" ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) || (value.is_structured() && value.empty());
}

bool changes_meaning(std::string_view name) {
  return std::ranges::any_of(kChangesMeaning,
                             [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// Whether a value is about such weights, by a key or the name of an algorithm. The parser bounds the depth of JSON.
bool speaks_of_change(const std::string& key, const Json& value) {
  if (says_nothing(value)) return false;
  if (changes_meaning(key)) return true;
  if (value.is_string()) return key == "name" && changes_meaning(value.get<std::string>());
  if (!value.is_structured()) return false;
  const auto items = value.items();
  return std::any_of(items.begin(), items.end(),
                     [](const auto& item) { return speaks_of_change(item.key(), item.value()); });
}

/// Two sizes, as in [128, 128]; nullopt: absent.
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

/// Columns that share a scale; nullopt: absent, or -1 (a row of weights is one group).
std::optional<uint32_t> read_group_size(ConfigFields& fields) {
  const Json* size = fields.find("group_size");
  if (size == nullptr || *size == -1) return std::nullopt;
  return fields.integer("group_size", 1, kMaxBlock);
}

/// Fails (unsupported) if the key has another value.
void only(ConfigFields& fields, std::string_view key, const Json& value) {
  const Json* found = fields.find(key);
  if (found != nullptr && *found != value)
    fields.fail(ErrorKind::unsupported, key, "only " + value.dump() + " can be run");
}

/// Adds a note for each key that was not read and is not in `without_effect`. Fails (unsupported) if one determines the
/// meaning of codes, or is about modified weights: rotated, permuted, transformed, sparse.
void pass_over(ConfigFields& fields, std::span<const std::string_view> without_effect,
               std::vector<std::string>& notes) {
  for (const std::string& key : fields.others(without_effect)) {
    const Json& value = *fields.find(key);
    if (std::ranges::find(kOfCodes, key) != kOfCodes.end())
      fields.fail(ErrorKind::unsupported, key, "it says what codes mean, and is not known with this quant_method");
    if (says_nothing(value)) continue;
    if (speaks_of_change(key, value)) {
      fields.fail(ErrorKind::unsupported, key,
                  "weights that are rotated, permuted, sparse or otherwise transformed cannot be run");
      return;
    }
    notes.push_back(fields.described(key) + "; this program does not know the key, and goes by the tensors");
  }
}

// "quant_method": "awq", "gptq", "auto-round", "moe_wna16", "bitsandbytes". Source: AutoAWQ, GPTQModel 7.7, AutoRound
// 0.16.1, transformers and vLLM, as they write and read it.

// How codes were found, how they are computed, and which modules were left unconverted.
constexpr std::array<std::string_view, 52> kIntegersWithoutEffect = {"_load_in_4bit",
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

// As AutoAWQ and transformers write it, and GPTQModel, which uses GPTQ's words for its settings.
Quantization read_awq(ConfigFields& fields, std::vector<std::string>& notes) {
  Quantization found{.bits = read_bits(fields, {4}), .group = read_group_size(fields)};
  const std::string packing = packing_of(fields, {"version", "checkpoint_format", "format"}, "gemm");
  if (packing != "gemm") fields.fail(ErrorKind::unsupported, "version", R"(only "gemm" can be run)");
  (void)fields.flag("zero_point", true);  // zero points are stored, even if each is the middle of the range
  (void)fields.text("method", "awq");
  (void)fields.flag("desc_act", false);  // AWQ does not reorder columns
  check_gptq(fields);
  pass_over(fields, kIntegersWithoutEffect, notes);
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
  pass_over(fields, kIntegersWithoutEffect, notes);
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
  pass_over(fields, kIntegersWithoutEffect, notes);
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
  pass_over(fields, kIntegersWithoutEffect, notes);
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
  pass_over(fields, kIntegersWithoutEffect, notes);
  return found;
}

// Weights are multiplied as they are stored, activations stay FP32, and --kv-dtype decides about the KV cache. So how
// other programs round activations and the cache, and which modules were converted, has no effect.
constexpr std::array<std::string_view, 6> kFp8WithoutEffect = {
    "activation_scheme", "activation_scale_ub", "modules_to_not_convert",
    "ignored_layers",    "dequantize",          "kv_cache_scheme"};
constexpr std::array<std::string_view, 7> kCompressedWithoutEffect = {
    "ignore",   "quantization_status", "global_compression_ratio", "version", "registry_requires_subclass",
    "observer", "kv_cache_scheme"};
constexpr std::array<std::string_view, 3> kGroupWithoutEffect = {"targets", "input_activations", "output_activations"};
constexpr std::array<std::string_view, 6> kWeightsWithoutEffect = {"observer",   "observer_kwargs", "dynamic",
                                                                   "group_size", "scale_dtype",     "zp_dtype"};

// "quant_method": "fp8", as DeepSeek and transformers write it.
std::optional<BlockSize> read_fp8(ConfigFields& fields, std::vector<std::string>& notes) {
  only(fields, "fmt", "e4m3");
  // ue8m0 means that the scales are powers of two; their tensors are F32 or F8_E8M0.
  const std::string scales = fields.text("scale_fmt", "float");
  if (scales != "float" && scales != "ue8m0") {
    fields.fail(ErrorKind::unsupported, "scale_fmt", R"(only "ue8m0" and "float" can be run)");
  }
  const std::optional<BlockSize> block = read_block(fields, "weight_block_size");
  (void)fields.find("expert_dtype");  // transformers moves DeepSeek-V4's here; tensors show how experts are stored
  pass_over(fields, kFp8WithoutEffect, notes);
  return block;
}

constexpr std::string_view kByteScales = "torch.uint8";  // E8M0
// Number formats of compressed-tensors.
constexpr std::array<std::string_view, 7> kCompressedFormats = {
    "float-quantized",      "int-quantized",   "pack-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision"};

void only_formats(ConfigFields& fields) {
  const std::string format = fields.text("format", kCompressedFormats.front());
  if (std::ranges::find(kCompressedFormats, format) == kCompressedFormats.end()) {
    fields.fail(ErrorKind::unsupported, "format",
                fmt::format("only {} can be run", fmt::join(kCompressedFormats, ", ")));
  }
}

// Reads weights in groups: integers with or without zero points, and FP4.
Quantization read_groups(ConfigFields& weights, uint32_t bits, std::string_view strategy) {
  Quantization found{.block = {}, .bits = bits, .group = {}, .symmetric = weights.flag("symmetric", true)};
  // "weight" and "static" keep the columns of a group adjacent; true is an old way to write "group".
  if (const Json* order = weights.find("actorder"); order != nullptr && (*order == "group" || *order == true))
    found.ordered = true;
  if (strategy == "group" || strategy == "tensor_group") found.group = weights.integer("group_size", 1, kMaxBlock);
  return found;
}

// FP8 in groups is only MXFP8, whose scales are powers of two.
void check_strategy(ConfigFields& weights, const std::string& type, uint32_t bits, const std::string& strategy) {
  constexpr std::array<std::string_view, 5> kStrategies = {"tensor", "channel", "block", "group", "tensor_group"};
  const bool is_known = std::ranges::find(kStrategies, strategy) != kStrategies.end();
  const bool is_grouped = strategy == "group" || strategy == "tensor_group";
  const bool is_refused =
      (type == "int" && strategy != "channel" && strategy != "group") ||
      (type == "float" && bits == 8 && is_grouped && weights.text("scale_dtype", "") != kByteScales) ||
      (type == "float" && bits == 4 && !is_grouped);
  if (!is_known || is_refused)
    weights.fail(ErrorKind::unsupported, "strategy", fmt::format("it cannot be run for {} bits of \"{}\"", bits, type));
}

// Reads one entry of "config_groups": how the weights of some layers are stored.
Result<Quantization> read_group(const Json& group, const std::string& place, std::vector<std::string>& notes) {
  ConfigFields fields(group, place);
  const Json* weights = fields.object("weights");
  only_formats(fields);
  pass_over(fields, kGroupWithoutEffect, notes);
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
  pass_over(inner, kWeightsWithoutEffect, notes);
  if (inner.error()) return *inner.error();
  if (type == "float" && bits == 8) found = {};
  if (strategy == "block") found.block = block;
  return found;
}

// The value that all groups of one kind agree on; else no value.
template <class T>
T agreed(const std::vector<T>& said) {
  if (said.empty() || std::ranges::any_of(said, [&](const T& one) { return one != said.front(); })) return T();
  return said.front();
}

// "quant_method": "compressed-tensors". The patterns that assign layers to groups are not needed: 8-bit floats in
// blocks and codes in groups are distinguished by their tensors, and where groups of one kind differ, sizes follow from
// the tensors' shapes.
Result<Quantization> read_compressed(ConfigFields& fields, std::vector<std::string>& notes) {
  only_formats(fields);
  const Json* groups = fields.object("config_groups");
  pass_over(fields, kCompressedWithoutEffect, notes);
  if (fields.error()) return *fields.error();
  if (groups == nullptr) return Quantization();
  std::vector<std::optional<BlockSize>> blocks;
  std::vector<std::optional<uint32_t>> bits, sizes;
  std::vector<std::optional<bool>> symmetric, ordered;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) {
      fields.fail(ErrorKind::invalid, "config_groups", "expected an object of objects");
      return *fields.error();
    }
    TRY_ASSIGN(const auto one, read_group(group, fields.place() + R"(, a group of "config_groups")", notes));
    if (one.block) blocks.push_back(one.block);
    if (!one.bits) continue;
    bits.push_back(one.bits);
    sizes.push_back(one.group);
    symmetric.push_back(one.symmetric);
    ordered.push_back(one.ordered);
  }
  return Quantization{.block = agreed(blocks),
                      .bits = agreed(bits),
                      .group = agreed(sizes),
                      .symmetric = agreed(symmetric),
                      .ordered = agreed(ordered)};
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  return text;
}

// "quant_method": "modelopt", as NVIDIA writes it. FP8 next to NVFP4 is recognised by the tensors.
Quantization read_modelopt(ConfigFields& fields, std::vector<std::string>& notes) {
  constexpr std::array<std::string_view, 11> kAlgorithms = {
      "NVFP4", "FP8",   "MIXED_PRECISION", "W4A16_NVFP4", "NVFP4_AWQ", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN",
      "MXFP4", "MXFP8", "W4A8_MXFP4_FP8",  "W8A16"};
  // For NVFP4_AWQ: if the factors of inputs ("pre_quant_scale") were not multiplied into the layer before, they are
  // tensors, and refused as such.
  constexpr std::array<std::string_view, 11> kWithoutEffect = {
      "exclude_modules", "ignore",        "kv_cache_quant_algo", "kv_cache_scheme",
      "producer",        "config_groups", "moe_quant_algo",      "quantized_layers",
      "quant_library",   "version",       "pre_quant_scale"};
  only(fields, "has_zero_point", false);
  const std::string algorithm = upper(fields.text("quant_algo", ""));  // some are written in lower case
  if (std::ranges::find(kAlgorithms, algorithm) == kAlgorithms.end())
    fields.fail(ErrorKind::unsupported, "quant_algo", fmt::format("only {} can be run", fmt::join(kAlgorithms, ", ")));
  Quantization found;
  const uint32_t group = fields.integer("group_size", 1, kMaxBlock, 16);
  if (algorithm.find("NVFP4") != std::string::npos) found.group = group;
  pass_over(fields, kWithoutEffect, notes);
  return found;
}

// The setting of AMD's Quark for all weights; nullopt: none.
std::optional<bool> quark_symmetry(ConfigFields& fields) {
  const Json* object = fields.object("global_quant_config");
  for (const char* step : {"weight", "symmetric"}) {
    if (object == nullptr || !object->is_object() || !object->contains(step)) return std::nullopt;
    object = &(*object)[step];
  }
  return object->is_boolean() ? std::optional(object->get<bool>()) : std::nullopt;
}

ExpectedForm::Kind expected_kind(const std::string& method, ConfigFields& fields, const Quantization& stored) {
  using enum ExpectedForm::Kind;
  if (method == "fp8" && stored.block) return fp8_blocks;
  if (method == "modelopt" && fields.text("quant_algo", "") == "NVFP4") return nvfp4;
  const bool is_packed = method == "compressed-tensors" && stored.bits && stored.group && stored.symmetric == true;
  return is_packed && fields.text("format", "") == "pack-quantized" ? packed : unknown;
}

void add_texts(const Json* list, std::vector<std::string>& into) {
  if (list == nullptr || !list->is_array()) return;
  for (const Json& text : *list) {
    if (text.is_string()) into.push_back(text.get<std::string>());
  }
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

Result<QuantizationReading> parse_quantization(const Json& object, std::string_view place) {
  ConfigFields fields(object, std::string(place));
  std::string method = fields.text("quant_method", "");
  if (method.starts_with("intel/")) method = method.substr(method.find('/') + 1);
  QuantizationReading found;
  if (method == "fp8" || method == "fbgemm_fp8") {
    found.stored.block = read_fp8(fields, found.notes);
  } else if (method == "compressed-tensors") {
    TRY_ASSIGN(found.stored, read_compressed(fields, found.notes));
  } else if (method == "modelopt" || method == "modelopt_fp4") {
    found.stored = read_modelopt(fields, found.notes);
  } else if (method == "awq") {
    found.stored = read_awq(fields, found.notes);
  } else if (method == "gptq") {
    found.stored = read_gptq(fields, found.notes);
  } else if (method == "auto-round") {
    found.stored = read_auto_round(fields, found.notes);
  } else if (method == "moe_wna16") {
    found.stored = read_wna16(fields, found.notes);
  } else if (method == "bitsandbytes") {
    found.stored = read_bitsandbytes(fields, found.notes);
  } else if (const std::string_view refusal = refusal_of(method); !refusal.empty()) {
    fields.fail(ErrorKind::unsupported, "quant_method", refusal);
  } else {
    found.notes.push_back(fields.described("quant_method") +
                          "; this program does not know it, and goes by the tensors");
    if (method == "quark") found.stored.symmetric = quark_symmetry(fields);
    if (fields.find("bits") != nullptr) found.stored.bits = fields.integer("bits", 1, 32);
    (void)fields.find("sym");  // zero points are stored anyway
    pass_over(fields, kFp8WithoutEffect, found.notes);
  }
  if (fields.error()) return *fields.error();
  found.expected.kind = expected_kind(method, fields, found.stored);
  for (const char* key : {"ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"})
    add_texts(fields.find(key), found.expected.unquantised);
  return found;
}

Result<Json> find_quantization(const Json& config, std::string_view beside) {
  if (const auto said = config.find("quantization_config"); said != config.end() && !said->is_null()) return *said;
  if (beside.empty()) return Json();
  TRY_ASSIGN(Json json, parse_json_file(beside, kConfigDocument));
  const auto said = json.is_object() ? json.find("quantization") : json.end();
  if (!json.is_object() || said == json.end() || said->is_null()) return Json();
  if (!said->is_object()) return Error{ErrorKind::invalid, R"("quantization" is not a JSON object)"};
  Json found = *said;
  // Missing if only the cache is quantised.
  if (const auto algorithm = found.find("quant_algo"); algorithm == found.end() || algorithm->is_null()) return Json();
  found["quant_method"] = "modelopt";
  return found;
}

}  // namespace dspack::format
