// What config.json says about how weights are stored ("quantization_config"). The type of a weight is that of its
// tensors, and lists of modules that were not converted are not needed; what config.json says of sizes is compared with
// them. A method or a key that nobody knows here is passed over with a note, because the tensors decide; refused is
// what changes the meaning of complete tensors (bits, zero points, rotations, transforms). Threads: thread-safe (pure
// functions). Errors: invalid, unsupported; each names the file, the key and the value. Source: the released
// config.json files; transformers' FineGrainedFP8Config; the compressed-tensors format; the hf_quant_config.json of
// NVIDIA's repositories.
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

/// Absent: not said, or not the same for all weights.
struct Quantization {
  std::optional<BlockSize> block = {};  // of 8-bit floats
  // Of codes in groups of columns:
  std::optional<uint32_t> bits = {};   // of a code
  std::optional<uint32_t> group = {};  // columns that share a scale
  std::optional<bool> symmetric = {};  // without zero points
  std::optional<bool> ordered = {};    // columns have other groups than their neighbours' ("desc_act", "actorder")
  // Of GPTQ:
  std::optional<uint32_t> zero_offset = {};  // what a stored zero point lacks
  // Of bitsandbytes:
  std::optional<std::string_view> four_bits = {};  // "nf4" or "fp4", literals
  bool operator==(const Quantization&) const = default;
};

/// What is said, by its name; empty: nothing.
[[nodiscard]] Json quantization_json(const Quantization& said);

/// How matrices are stored whose tensors nobody has seen, for plans.
struct ExpectedForm {
  enum class Kind {
    unknown,     // config.json does not tell what tensors there are
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
  std::vector<std::string> notes;  // a sentence for each thing that was passed over
};

/// `object` is the JSON object, `place` says where it stands.
[[nodiscard]] Result<QuantizationReading> parse_quantization(const Json& object, std::string_view place);

/// NVIDIA's repositories say how weights are stored in a file of their own, and some in no other.
inline constexpr char kHfQuantConfigPath[] = "hf_quant_config.json";

/// What is there to be parsed: "quantization_config" of `config`, or what the text of kHfQuantConfigPath says; null:
/// nothing. Errors: of that text.
[[nodiscard]] Result<Json> find_quantization(const Json& config, std::string_view beside);

}  // namespace dspack::format
