// Arrangements: which files a checkpoint's tensors lie in, and where. What there is, what a grouping would make of it,
// and what a packed repository was made from, in one form, so that they can be compared.
// Threads: pure functions. Lifetime: refers to the catalogue by index; keep both together. Errors: none.
#pragma once

#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/packing/planned_file.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {

struct ArrangedFile {
  std::string path;
  uint64_t size_bytes = 0;
  uint64_t data_start = 0;
  std::vector<uint32_t> tensors;  // catalogue indices, by offset
  std::vector<uint64_t> offsets;  // absolute, of each tensor
};

/// Files by path.
using Arrangement = std::vector<ArrangedFile>;

/// As the checkpoint lies.
[[nodiscard]] Arrangement present_arrangement(const format::Checkpoint& checkpoint);

/// As a grouping would lay it out.
[[nodiscard]] Arrangement planned_arrangement(const format::Grouping& by, const format::Checkpoint& checkpoint);

/// As it lay in the shards that a packed repository was made from.
[[nodiscard]] Arrangement source_arrangement(const std::vector<ShardImage>& shards,
                                             const format::Checkpoint& checkpoint);

}  // namespace dspack::reshard
