// `reshard repair` of an unfinished repository: data that the journal records and that is lost or differs is fetched
// again; then the run resumes and completes. Broken lines inside a journal are removed first, and their work is
// repeated.
// Threads: one call per folder at a time; a second one is refused (conflict). Errors: as repack and repair; conflict
// (parts, which are repaired by their own commands).
#pragma once

#include "reshard/run/repack.h"
#include "reshard/verbs/repair/repair.h"

namespace dspack::reshard {

/// `outlook`: of the run that was begun, as repack has it.
[[nodiscard]] Result<RepairReport> repair_unfinished(const RepackOutlook& outlook, format::Repository& repository,
                                                     const RepackOptions& options, Scrutiny scrutiny,
                                                     format::FileSystem& files, format::Progress& progress,
                                                     const std::stop_token& stop);

}  // namespace dspack::reshard
