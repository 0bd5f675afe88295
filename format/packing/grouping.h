// Grouping: which tensors of a checkpoint share a file of a packed repository, and which of them are read together.
// Threads: plain values and pure functions. Lifetime: a Placement refers to the catalogue by index. Errors: invalid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/checkpoint.h"

namespace dspack::format {

struct Grouping {
  enum class Kind {
    expert,  // a file for each `experts_per_file` consecutive experts of a layer; one for the rest of the layer
    layer,   // a file for all routed experts of a layer; one for the rest of it
    shard,   // files of up to `shard_bytes` bytes, in the model's order, as released checkpoints have
  };
  Kind kind = Kind::expert;
  uint64_t experts_per_file = 1;  // of kind expert
  uint64_t shard_bytes = 0;       // of kind shard; a file is larger only if a single expert or tensor is
};

/// "expert", "expert:N", "layer" or "shard:SIZE".
[[nodiscard]] Result<Grouping> parse_grouping(std::string_view text);
/// The inverse; equal groupings give equal text: "expert:1" is "expert", a SIZE is in bytes.
[[nodiscard]] std::string to_string(const Grouping& grouping);

struct PlacedTensor {
  uint32_t tensor = 0;  // catalogue index
  uint32_t unit = 0;    // what is read together has the same number; ascending in the order of the file
};

/// A file of weights and what goes into it.
struct Placement {
  std::string path;
  std::string part;                   // as in PackedFile
  std::optional<LayerId> layer;       // of all its tensors
  std::vector<ExpertKey> experts;     // that it holds whole, ascending
  std::vector<PlacedTensor> tensors;  // in no particular order
};

/// Files by path; every tensor of the catalogue that is no alias is in exactly one of them, and so is every expert.
[[nodiscard]] std::vector<Placement> place_tensors(const Grouping& grouping, const Checkpoint& source);

}  // namespace dspack::format
