// `reshard seal DIR` of a folder that parts have filled: joins the files that lie in several parts, writes the journal
// that one process alone would have written, and lets that run go on from there: so the result is that of one process,
// byte for byte. Killed at any instant, the same call goes on. Also completes a run of one process of which all shards
// are read. Threads: one call per folder; parts must have ended (conflict). Memory: staging buffers (2 MiB). Disk: a
// file in several parts is begun with the largest of its pieces; the others are there twice until the end. Errors:
// conflict (a part is missing, unfinished or running, a file that it has made is gone), corrupt (what a part has left
// does not read as it was written), budget, io; those of repack.
#pragma once

#include "format/progress.h"
#include "reshard/run/repack.h"

namespace dspack::reshard {

[[nodiscard]] Result<RepackOutcome> seal_parts(const RepackOutlook& outlook, format::Repository& repository,
                                               const RepackOptions& options, format::FileSystem& files,
                                               format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
