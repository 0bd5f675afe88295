// The "quantization_config" of config.json: how weights are stored. A weight's type is that of its tensors, and lists
// of modules that were not converted are not needed; sizes in config.json are compared with the tensors. An unknown
// method or key is ignored with a note, because the tensors decide; keys that change the meaning of complete tensors
// (bits, zero points, rotations, transforms) are refused. Threads: thread-safe (pure functions). Errors: invalid,
// unsupported; each names the file, the key and the value. Source: the released config.json files; transformers'
// FineGrainedFP8Config; the compressed-tensors format; the hf_quant_config.json of NVIDIA's repositories.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/json.h"

namespace dspack::format {

/// Rows and columns of a weight that share one FP8 scale. Absent sizes are taken from the scales' shapes.
struct BlockSize {
  uint32_t out = 0;
  uint32_t in = 0;
  bool operator==(const BlockSize&) const = default;
};

/// Absent: not given, or not the same for all weights.
struct Quantization {
  std::optional<BlockSize> block = {};  // for 8-bit floats
  // For codes in groups of columns:
  std::optional<uint32_t> bits = {};   // per code
  std::optional<uint32_t> group = {};  // columns that share a scale
  std::optional<bool> symmetric = {};  // without zero points
  std::optional<bool> ordered = {};    // neighbouring columns may be in different groups ("desc_act", "actorder")
  // For GPTQ:
  std::optional<uint32_t> zero_offset = {};  // to be added to a stored zero point
  // For bitsandbytes:
  std::optional<std::string_view> four_bits = {};  // "nf4" or "fp4", literals
  bool operator==(const Quantization&) const = default;
};

/// The given values by their names; empty: none.
[[nodiscard]] Json quantization_json(const Quantization& said);

/// How matrices are stored whose tensors have not been read, for plans.
struct ExpectedForm {
  enum class Kind {
    unknown,     // config.json does not determine the tensors
    fp8_blocks,  // weight, weight_scale_inv
    nvfp4,       // modelopt's weight, weight_scale, weight_scale_2, input_scale
    packed,      // compressed-tensors' weight_packed, weight_scale, weight_shape
  };
  Kind kind = Kind::unknown;
  /// Modules that were left in BF16, as written: a name, one with "*" for any text, or "re:" and a regular expression.
  std::vector<std::string> unquantised = {};
  bool operator==(const ExpectedForm&) const = default;
};

struct QuantizationReading {
  Quantization stored;
  ExpectedForm expected;
  std::vector<std::string> notes;  // a sentence per ignored item
};

/// `object`: the JSON object; `place`: where it is.
[[nodiscard]] Result<QuantizationReading> parse_quantization(const Json& object, std::string_view place);

/// NVIDIA's repositories describe in a separate file how weights are stored, some only there.
inline constexpr char kHfQuantConfigPath[] = "hf_quant_config.json";

/// The object to parse: "quantization_config" of `config`, else the settings in `beside`, the text of
/// kHfQuantConfigPath; null: none. Errors: those of that text.
[[nodiscard]] Result<Json> find_quantization(const Json& config, std::string_view beside);

}  // namespace dspack::format
