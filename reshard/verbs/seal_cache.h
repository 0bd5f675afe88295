// `reshard seal DIR`: turns a complete cache folder of `dsrun` into a packed repository. The result equals the origin
// repacked by expert; if the origin is already packed by expert, the manifest is identical.
// Threads: one call; `jobs` files at a time. Memory: a few MiB per job. Errors: not_found (no cache), conflict (in
// use), corrupt (cached bytes that differ from what was fetched), network (small files of the origin that dsrun did not
// need), io.
#pragma once

#include <string>
#include <vector>

#include "format/cache/weight_cache.h"
#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::reshard {

struct SealOutcome {
  bool was_sealed = false;              // it was a packed repository before
  uint64_t missing_files = 0;           // if not 0, nothing was sealed
  uint64_t missing_bytes = 0;           // missing bytes of weights
  std::vector<std::string> first = {};  // paths of the first missing files
};

[[nodiscard]] Result<SealOutcome> seal_cache(const format::Path& folder, const format::RemoteOptions& remote,
                                             unsigned jobs, format::FileSystem& files, format::Progress& progress,
                                             const std::stop_token& stop);

}  // namespace dspack::reshard
