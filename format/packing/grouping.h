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
    expert,  // a file per `experts_per_file` consecutive experts of a layer; one for the rest of the layer
    layer,   // a file for all routed experts of a layer; one for the rest of it
    shard,   // files of up to `shard_bytes` bytes, in the model's order, as released checkpoints have
  };
  Kind kind = Kind::expert;
  uint64_t experts_per_file = 1;  // for Kind::expert
  uint64_t shard_bytes = 0;       // for Kind::shard; a file is larger only if a single expert or tensor is
};

/// "expert", "expert:N", "layer" or "shard:SIZE".
[[nodiscard]] Result<Grouping> parse_grouping(std::string_view text);
/// The inverse; equal groupings give equal text: "expert:1" is "expert", a SIZE is in bytes.
[[nodiscard]] std::string to_string(const Grouping& grouping);

struct PlacedTensor {
  uint32_t tensor = 0;  // catalogue index
  uint32_t unit = 0;    // equal for tensors that are read together; ascending in the order of the file
};

/// A file of weights and what goes into it.
struct Placement {
  std::string path;
  std::string part;                   // as in PackedFile
  std::optional<LayerId> layer;       // common to all its tensors
  std::vector<ExpertKey> experts;     // experts that it holds whole, ascending
  std::vector<PlacedTensor> tensors;  // in no particular order
};

/// Files sorted by path; every tensor except aliases, and every expert, is in exactly one of them.
[[nodiscard]] std::vector<Placement> place_tensors(const Grouping& grouping, const Checkpoint& source);

}  // namespace dspack::format
