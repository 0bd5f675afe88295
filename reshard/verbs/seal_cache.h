// `reshard seal DIR`: turns a complete cache folder of `dsrun` into a packed repository. The result equals the origin
// repacked by expert; if the origin is already packed by expert, the manifest is identical. Threads: one call; `jobs`
// files at a time. Memory: a few MiB a job. Errors: not_found (no cache), conflict (in use), corrupt (what is kept does
// not read as it was), network (small files of the origin that dsrun did not need), io.
#pragma once

#include <string>
#include <vector>

#include "format/cache/weight_cache.h"
#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::reshard {

struct SealOutcome {
  bool was_sealed = false;              // before
  uint64_t missing_files = 0;           // then nothing was sealed
  uint64_t missing_bytes = 0;           // of weights
  std::vector<std::string> first = {};  // paths of some that are missing
};

[[nodiscard]] Result<SealOutcome> seal_cache(const format::Path& folder, const format::RemoteOptions& remote,
                                             unsigned jobs, format::FileSystem& files, format::Progress& progress,
                                             const std::stop_token& stop);

}  // namespace dspack::reshard
