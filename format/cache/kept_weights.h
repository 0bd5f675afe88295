// Measures and checks the weights of a cache folder, without a network and without changing anything.
// Threads: pure functions of a state and a folder. Memory: the catalogue of one cache, and 1 MiB of a file at a time.
// Errors: io, cancelled; damage is part of the answer.
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "format/cache/cache_journal.h"
#include "format/file_system.h"
#include "format/progress.h"

namespace dspack::format {

/// Bytes of tensors: those in the cache, and those of the whole model.
struct KeptShare {
  uint64_t present_bytes = 0;
  uint64_t total_bytes = 0;
};

/// Errors: also those of opening a catalogue (small files that are not kept, or are damaged).
[[nodiscard]] Result<KeptShare> kept_share(FileSystem& files, const Path& root, const CacheState& state,
                                           const std::stop_token& stop);

struct CacheCheck {
  uint64_t digests = 0;  // number compared
  uint64_t bytes = 0;    // read and compared
  uint64_t damaged = 0;
  std::vector<std::string> findings;  // the first ones; each names its file
  std::string unchecked;              // why partial files could not be checked; empty: all were

  [[nodiscard]] bool is_good() const { return damaged == 0 && unchecked.empty(); }
};

/// Compares with the journal's digests: small files, headers, whole files, and every kept tensor and block of partial
/// files. `progress` counts files.
[[nodiscard]] Result<CacheCheck> check_kept(FileSystem& files, const Path& root, const CacheState& state,
                                            Progress& progress, const std::stop_token& stop);

}  // namespace dspack::format
