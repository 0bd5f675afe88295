// Grouping: which tensors of a checkpoint share a file of a packed repository.
// Threads: a plain value. Errors: invalid.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/base/result.h"

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

}  // namespace dspack::format
