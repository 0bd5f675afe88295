#include "runtime/weights/quantization_config.h"

#include <fmt/format.h>

#include <array>

#include "runtime/model/config_fields.h"

namespace dspack::runtime {

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
  const format::Json* block = fields.find(key);
  if (block == nullptr) return std::nullopt;
  const auto good = [](const format::Json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMaxBlock;
  };
  if (!block->is_array() || block->size() != 2 || !good((*block)[0]) || !good((*block)[1])) {
    fields.fail(ErrorKind::invalid, key, "expected two whole numbers, as in [128, 128]");
    return std::nullopt;
  }
  return BlockSize{.out = (*block)[0].get<uint32_t>(), .in = (*block)[1].get<uint32_t>()};
}

void only(ConfigFields& fields, std::string_view key, const format::Json& value) {
  const format::Json* found = fields.find(key);
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

// Of compressed-tensors: how numbers are written, and the type of these.
constexpr std::string_view kFloats = "float-quantized";
constexpr std::string_view kIntegers = "int-quantized";

void only_formats(ConfigFields& fields) {
  const std::string format = fields.text("format", kFloats);
  if (format != kFloats && format != kIntegers) {
    fields.fail(ErrorKind::unsupported, "format", R"(only "float-quantized" and "int-quantized" can be run)");
  }
}

// One entry of "config_groups": how the weights of some layers are stored.
Result<std::optional<BlockSize>> read_group(const format::Json& group, const std::string& place) {
  ConfigFields fields(group, place);
  const format::Json* weights = fields.object("weights");
  only_formats(fields);
  fields.refuse_others(kGroupWithoutEffect);
  if (fields.error()) return *fields.error();
  if (weights == nullptr) return std::optional<BlockSize>();
  ConfigFields inner(*weights, place + R"( "weights")");
  only(inner, "num_bits", 8);
  const std::string type = inner.text("type", "float");
  if (type != "float" && type != "int")
    inner.fail(ErrorKind::unsupported, "type", R"(only "float" and "int" can be run)");
  only(inner, "symmetric", true);
  const std::string strategy = inner.text("strategy", "tensor");
  const std::optional<BlockSize> block = read_block(inner, "block_structure");
  if (strategy != "tensor" && strategy != "channel" && strategy != "block") {
    inner.fail(ErrorKind::unsupported, "strategy", R"(only "tensor", "channel" and "block" can be run)");
  }
  if (type == "int" && strategy != "channel") {
    inner.fail(ErrorKind::unsupported, "strategy", R"(integers: only "channel" can be run)");
  }
  inner.refuse_others(kWeightsWithoutEffect);
  if (inner.error()) return *inner.error();
  return strategy == "block" ? block : std::nullopt;
}

// "quant_method": "compressed-tensors". Groups may differ, and their lists of targets are patterns: where they do, the
// block sizes are left to the scales' shapes.
Result<std::optional<BlockSize>> read_compressed(ConfigFields& fields) {
  only_formats(fields);
  only(fields, "sparsity_config", format::Json::object());
  only(fields, "transform_config", format::Json::object());
  const format::Json* groups = fields.object("config_groups");
  fields.refuse_others(kCompressedWithoutEffect);
  if (fields.error()) return *fields.error();
  std::optional<BlockSize> block;
  if (groups == nullptr) return block;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) {
      fields.fail(ErrorKind::invalid, "config_groups", "expected an object of objects");
      return *fields.error();
    }
    TRY_ASSIGN(const auto one, read_group(group, fields.place() + R"(, a group of "config_groups")"));
    if (groups->size() == 1) block = one;
  }
  return block;
}

}  // namespace

Result<std::optional<BlockSize>> parse_quantization(const format::Json& object, std::string_view place) {
  ConfigFields fields(object, std::string(place));
  const std::string method = fields.text("quant_method", "");
  std::optional<BlockSize> block;
  if (method == "fp8") {
    block = read_fp8(fields);
  } else if (method == "compressed-tensors") {
    TRY_ASSIGN(block, read_compressed(fields));
  } else {
    fields.fail(
        ErrorKind::unsupported, "quant_method",
        R"(only "fp8", "compressed-tensors" with 8-bit floats or integers, and unquantised weights can be run)");
  }
  if (fields.error()) return *fields.error();
  return block;
}

}  // namespace dspack::runtime
