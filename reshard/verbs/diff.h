// `reshard diff A B`: two checkpoints, packed or ordinary, local or remote, compared tensor by tensor and companion by
// companion. A packed repository's digests are trusted as its manifest states them (`verify` checks them); of an
// ordinary checkpoint only tensors whose bytes decide are read. Threads: one call; `jobs` files at a time. Memory: jobs
// x about 1 MiB, and a digest a tensor. Errors: as the repositories; differences are not errors.
#pragma once

#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/progress.h"

namespace dspack::reshard {

/// One of the two places.
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
  std::string name;    // of a tensor or companion
  std::string detail;  // of `type`: both descriptions
};

struct DiffReport {
  std::vector<Difference> tensors;     // by kind, then by name
  std::vector<Difference> companions;  // likewise; under the names that they have in the source
  std::string layer_maps;              // both, where they differ; empty: they do not, or were not compared
  uint64_t equal_tensors = 0;
  uint64_t equal_companions = 0;
  uint64_t bytes_read = 0;  // of tensors and companions; manifests, indexes and headers apart
  [[nodiscard]] bool equal() const { return tensors.empty() && companions.empty() && layer_maps.empty(); }
};

struct DiffOptions {
  bool companions =
      true;  // compare non-weight files too, but for the index: it tells where tensors lie; and layer maps
  unsigned jobs = 4;
};

[[nodiscard]] Result<DiffReport> diff(const DiffSide& a, const DiffSide& b, const DiffOptions& options,
                                      format::Progress& progress, const std::stop_token& stop);

/// For people: differences under headings, then the totals.
[[nodiscard]] std::string diff_text(const DiffReport& report);
/// One JSON object a line and difference: "kind", "tensor" or "companion", "detail" where there is one;
/// of layer maps "kind" and "detail".
[[nodiscard]] std::string diff_json(const DiffReport& report);

}  // namespace dspack::reshard
