// Placement: which tensors share a file, and which of them are read together.
// Threads: thread-safe (pure functions). Lifetime: refers to the catalogue by index. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/packing/grouping.h"

namespace dspack::format {

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
