// model.safetensors.index.json, and Mistral's consolidated.safetensors.index.json: which file of a sharded checkpoint
// holds which tensor.
// Threads: thread-safe (a pure function). Errors: invalid, naming the tensor or the key.
// Source: the files that transformers' save_pretrained writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::format {

/// The index of checkpoints in Mistral's own names.
inline constexpr char kConsolidatedIndexPath[] = "consolidated.safetensors.index.json";
/// Whether this is the path of either index.
[[nodiscard]] bool is_index_path(std::string_view path);

struct Index {
  std::vector<std::string> files;              // distinct, sorted; each stays below the repository
  std::map<std::string, uint32_t> weight_map;  // tensor -> number in `files`
};

/// Parses the text of the index. At least one tensor; further keys ("metadata") are passed over.
[[nodiscard]] Result<Index> parse_index(std::string_view text);

}  // namespace dspack::format
