// model.safetensors.index.json, and Mistral's consolidated.safetensors.index.json: which file of a sharded checkpoint
// holds which tensor.
// Threads: thread-safe (pure functions). Errors: invalid, naming the tensor or the key.
// Source: the files that transformers' save_pretrained writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/json.h"

namespace dspack::format {

inline constexpr char kIndexPath[] = "model.safetensors.index.json";
/// The index of checkpoints with Mistral's own names.
inline constexpr char kConsolidatedIndexPath[] = "consolidated.safetensors.index.json";
/// Whether this is the path of either index.
[[nodiscard]] bool is_index_path(std::string_view path);

struct Index {
  std::vector<std::string> files;              // distinct, sorted; each stays below the repository
  std::map<std::string, uint32_t> weight_map;  // tensor -> index into `files`
};

/// Parses the text of an index. It must name a tensor; further keys ("metadata") are ignored.
[[nodiscard]] Result<Index> parse_index(std::string_view text);

/// An index as on the Hub: {"metadata":{"total_size":...},"weight_map":{tensor: file}}.
[[nodiscard]] std::string hub_index(uint64_t payload_bytes, Json weight_map);

}  // namespace dspack::format
