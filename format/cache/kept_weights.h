// The weights of a cache folder, looked at and checked without a network and without changing anything.
// Threads: pure functions of a state and a folder. Memory: the catalogue of one place, and 1 MiB of a file at a time.
// Errors: io, cancelled; damage is part of the answer.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "format/cache/cache_journal.h"
#include "format/file_system.h"
#include "format/progress.h"

namespace dspack::format {

/// Bytes of tensors: those that are here, and those of the model.
struct KeptShare {
  uint64_t present_bytes = 0;
  uint64_t total_bytes = 0;
};

/// Errors: also those of reading a catalogue (small files that are not kept, or are damaged).
[[nodiscard]] Result<KeptShare> kept_share(FileSystem& files, const Path& root, const CacheState& state,
                                           const std::stop_token& stop);

struct CacheCheck {
  uint64_t digests = 0;  // compared
  uint64_t bytes = 0;    // read for them
  uint64_t damaged = 0;
  std::vector<std::string> findings;  // of these the first; each names its file
  std::string unchecked;              // why partial files could not be checked; empty: all were

  [[nodiscard]] bool is_good() const { return damaged == 0 && unchecked.empty(); }
};

/// Counts each of them as a file of the progress. Compares small files, headers, whole files, and of partial files
/// every tensor and block with the journal's digests.
[[nodiscard]] Result<CacheCheck> check_kept(FileSystem& files, const Path& root, const CacheState& state,
                                            Progress& progress, const std::stop_token& stop);

}  // namespace dspack::format
