// The disk that packing takes. Ordinary files grow in place. A compressed one lies there raw until its frames are
// recorded, so files are sealed in batches, and what each job seals at the moment counts twice:
//
//   need = what zstd makes of every file at worst + jobs x (one batch and the file that fills it)
//
// A file that lies in several parts has in each the bytes of that part, raw. Raw files that wait for more of their
// bytes need nothing on top: at no time are they larger than what is counted for what they become. Threads: pure
// functions. Errors: those of the file system.
#pragma once

#include <functional>

#include "format/file_system.h"
#include "reshard/run/part.h"

namespace dspack::reshard {

/// How a plan is carried out, as far as the disk is concerned.
struct DiskUse {
  unsigned jobs = 4;
  /// Raw bytes with which a batch of compressed files is sealed: much against the syncs of a batch, little on a disk.
  uint64_t batch_bytes = 256ULL << 20;
};

/// Most that the files of a plan take at once, from nothing to the end.
[[nodiscard]] uint64_t disk_bytes(const Plan& plan, const DiskUse& use);

/// Disk that is still needed for what comes from the scope's shards, given which files are sealed.
[[nodiscard]] Result<uint64_t> missing_bytes(const Plan& plan, const RunScope& scope,
                                             const std::function<bool(uint32_t)>& sealed, const DiskUse& use,
                                             format::FileSystem& files);

/// Files and folders that are still to be made for what comes from the scope's shards: weight files that are nowhere
/// yet, the folders they lie in, and those once more in which they lie until they have all their bytes.
[[nodiscard]] Result<uint64_t> missing_files(const Plan& plan, const RunScope& scope,
                                             const std::function<bool(uint32_t)>& sealed, const DiskUse& use,
                                             format::FileSystem& files);

}  // namespace dspack::reshard
