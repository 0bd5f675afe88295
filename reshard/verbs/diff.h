// `reshard diff A B`: compares two checkpoints, packed or ordinary, local or remote, tensor by tensor and companion by
// companion. The digests in a packed repository's manifest are trusted (`verify` checks them); of an ordinary
// checkpoint only tensors whose bytes decide are read.
// Threads: one call; `jobs` files at a time. Memory: jobs x about 1 MiB, and a digest per tensor. Errors: as the
// repositories; differences are not errors.
#pragma once

#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/progress.h"

namespace dspack::reshard {

/// One of the two places to compare.
struct DiffSide {
  format::Repository& repository;
  const format::Checkpoint& catalogue;
};

enum class DifferenceKind {
  only_in_a,
  only_in_b,
  type,   // another dtype or shape
  bytes,  // the same dtype and shape, other bytes
};

struct Difference {
  DifferenceKind kind = DifferenceKind::bytes;
  std::string name;    // name of a tensor or companion
  std::string detail;  // for `type`: both descriptions
};

struct DiffReport {
  std::vector<Difference> tensors;     // by kind, then by name
  std::vector<Difference> companions;  // by kind, then by name; under their names in the source
  std::string layer_maps;              // both, if they differ; empty: equal or not compared
  uint64_t equal_tensors = 0;
  uint64_t equal_companions = 0;
  uint64_t bytes_read = 0;  // tensors and companions, without manifests, indexes and headers
  [[nodiscard]] bool equal() const { return tensors.empty() && companions.empty() && layer_maps.empty(); }
};

struct DiffOptions {
  bool companions = true;  // also layer maps, and non-weight files except the index, which only locates tensors
  unsigned jobs = 4;
};

[[nodiscard]] Result<DiffReport> diff(const DiffSide& a, const DiffSide& b, const DiffOptions& options,
                                      format::Progress& progress, const std::stop_token& stop);

/// For people: differences under headings, then the totals.
[[nodiscard]] std::string diff_text(const DiffReport& report);
/// One JSON object per line and difference: "kind", "tensor" or "companion", and "detail" if there is one; for layer
/// maps "kind" and "detail".
[[nodiscard]] std::string diff_json(const DiffReport& report);

}  // namespace dspack::reshard
