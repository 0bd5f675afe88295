// Joins the partial files of several parts into the partial files of one run. What was joined stays joined: a call that
// was killed is made again. Threads: one call per folder, whose lock the caller holds.
// Errors: conflict (a file that a part has made is gone), corrupt (a tensor does not read as it was written), budget,
// io.
#pragma once

#include "format/progress.h"
#include "reshard/run/repack_part.h"

namespace dspack::reshard {

/// `parts`: all of one count, all done. Afterwards every file of the plan is sealed by a part, or lies with all its
/// bytes, which are durable, where a run of one process keeps partial files.
[[nodiscard]] Result<void> join_parts(const Plan& plan, const std::vector<LoadedPart>& parts, const format::Path& out,
                                      format::FileSystem& files, format::Progress& progress,
                                      const std::stop_token& stop);

}  // namespace dspack::reshard
