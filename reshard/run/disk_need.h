// Disk space needed for packing. Ordinary files grow in place. A compressed file keeps its raw form until its frames
// are recorded; files are sealed in batches, so the batch that each job is sealing counts twice:
//
//   need = worst-case zstd size of every file + jobs x (one batch and the file that fills it)
//
// A file shared by several parts takes, in each part, the raw bytes of that part. Raw files that wait for more bytes
// need no extra space: they are never larger than what is counted for their final form.
// Threads: pure functions. Errors: those of the file system.
#pragma once

#include <functional>

#include "format/file_system.h"
#include "reshard/run/part.h"

namespace dspack::reshard {

/// How a plan is carried out, as far as disk space is concerned.
struct DiskUse {
  unsigned jobs = 4;
  /// Raw bytes per batch of compressed files: enough to amortise the batch's syncs, little disk space.
  uint64_t batch_bytes = 256ULL << 20;
};

/// Peak disk space for the files of a plan, from start to end.
[[nodiscard]] uint64_t disk_bytes(const Plan& plan, const DiskUse& use);

/// Disk space still needed for the output of the scope's shards, given which files are sealed.
[[nodiscard]] Result<uint64_t> missing_bytes(const Plan& plan, const RunScope& scope,
                                             const std::function<bool(uint32_t)>& sealed, const DiskUse& use,
                                             format::FileSystem& files);

/// Number of files and folders still to be created for the output of the scope's shards: weight files that do not exist
/// yet, and the folders for their partial and final forms.
[[nodiscard]] Result<uint64_t> missing_files(const Plan& plan, const RunScope& scope,
                                             const std::function<bool(uint32_t)>& sealed, const DiskUse& use,
                                             format::FileSystem& files);

}  // namespace dspack::reshard
