// `reshard repair` of an unfinished repository: fetches data again that the journal records but that is lost or
// differs; then the run resumes and completes. Broken lines inside a journal are removed first, and their work is
// repeated.
// Threads: one call per folder at a time; a second one is refused (conflict). Errors: as repack and repair; conflict
// (parts, which are repaired by their own commands).
#pragma once

#include "reshard/run/repack.h"
#include "reshard/verbs/repair/repair.h"

namespace dspack::reshard {

/// `outlook`: that of the unfinished run, as for repack.
[[nodiscard]] Result<RepairReport> repair_unfinished(const RepackOutlook& outlook, format::Repository& repository,
                                                     const RepackOptions& options, Scrutiny scrutiny,
                                                     format::FileSystem& files, format::Progress& progress,
                                                     const std::stop_token& stop);

}  // namespace dspack::reshard
