// `reshard verify DIR [--source SOURCE]`: reads a packed repository again and compares every digest; with a source,
// every tensor and every other file byte for byte as well. Threads: one call; reads `jobs` files at a time. Errors:
// what keeps it from reading at all (no manifest, network); differences are findings, not errors.
#pragma once

#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::reshard {

struct VerifyReport {
  uint64_t files = 0;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t companions = 0;            // other files that were compared with the source's
  std::vector<std::string> findings;  // one line each: file, tensor if known, what is wrong; sorted
};

/// Every file of the manifest: present, of its size, with its digest; every tensor and row block with its own.
[[nodiscard]] Result<VerifyReport> verify_digests(format::Repository& packed, const format::Checkpoint& catalogue,
                                                  unsigned jobs, format::Progress& progress,
                                                  const std::stop_token& stop);

/// Every tensor of the source is in the packed repository with the same dtype, shape and bytes, and no other is; so are
/// its files without weights, but for the index, which says where tensors lie and not what they are.
[[nodiscard]] Result<VerifyReport> verify_against_source(format::Repository& packed,
                                                         const format::Checkpoint& catalogue,
                                                         format::Repository& source_repository,
                                                         const format::Checkpoint& source, unsigned jobs,
                                                         format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
