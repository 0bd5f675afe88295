// `reshard seal DIR` for a folder that parts have filled: joins the files that several parts share, writes the journal
// that a single process would have written, and resumes that run: the result is that of one process, byte for byte. If
// killed at any instant, the same call resumes. Also completes a run of one process whose shards are all read.
// Threads: one call per folder; parts must have ended (conflict). Memory: staging buffers (2 MiB). Disk: a file shared
// by parts starts as its largest piece; the other pieces exist twice until the end.
// Errors: conflict (a part is missing, unfinished or running, or a file that it made is gone), corrupt (a part's file
// differs from what was written), budget, io; those of repack.
#pragma once

#include "format/progress.h"
#include "reshard/run/repack.h"

namespace dspack::reshard {

[[nodiscard]] Result<RepackOutcome> seal_parts(const RepackOutlook& outlook, format::Repository& repository,
                                               const RepackOptions& options, format::FileSystem& files,
                                               format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
