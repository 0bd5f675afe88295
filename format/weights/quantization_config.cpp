#include "format/weights/quantization_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "format/weights/quantization_fields.h"
#include "format/weights/quantization_integers.h"
#include "format/weights/refused_forms.h"

namespace dspack::format {

namespace {

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
// blocks and codes in groups are distinguished by their tensors, and if groups of one kind differ, sizes follow from
// the scales' shapes.
Result<Quantization> read_compressed(ConfigFields& fields, std::vector<std::string>& notes) {
  only_formats(fields);
  const Json* groups = fields.object("config_groups");
  pass_over(fields, kCompressedWithoutEffect, notes);
  if (fields.error()) return *fields.error();
  if (groups == nullptr) return Quantization();
  std::vector<std::optional<BlockSize>> blocks;
  std::vector<Quantization> codes;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) {
      fields.fail(ErrorKind::invalid, "config_groups", "expected an object of objects");
      return *fields.error();
    }
    TRY_ASSIGN(const auto one, read_group(group, fields.place() + R"(, a group of "config_groups")", notes));
    if (one.block) blocks.push_back(one.block);
    if (one.bits) codes.push_back(one);
  }
  Quantization found = agreed(codes);
  found.block = agreed(blocks);
  return found;
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
