// What config.json says about how weights are stored ("quantization_config"). The type of a weight is that of its
// tensors, and lists of modules that were not converted are not needed; what config.json says of sizes is compared with
// them. Unknown settings that would change the meaning of the tensors are refused.
// Threads: thread-safe (pure functions). Errors: invalid, unsupported; each names the file, the key and the value.
// Source: the released config.json files; transformers' FineGrainedFP8Config; the compressed-tensors format; the
// hf_quant_config.json of NVIDIA's repositories.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

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
  // Of GPTQ:
  std::optional<uint32_t> zero_offset = {};  // what a stored zero point lacks
  std::optional<bool> ordered = {};          // columns have other groups than their neighbours' ("desc_act")
  // Of bitsandbytes:
  std::optional<std::string_view> four_bits = {};  // "nf4" or "fp4", literals
  bool operator==(const Quantization&) const = default;
};

/// What is said, by its name; empty: nothing.
[[nodiscard]] Json quantization_json(const Quantization& said);

/// `object` is the JSON object, `place` says where it stands.
[[nodiscard]] Result<Quantization> parse_quantization(const Json& object, std::string_view place);

}  // namespace dspack::format
