// `reshard repair DIR`: fetches exactly the data of a packed repository that is lost or differs from its manifest. The
// result is the repository as it was sealed, byte for byte; the manifest is trusted.
// Threads: one call per folder at a time; a second one is refused (conflict). If killed at any instant, the same call
// resumes with what was fetched. Memory: as packing. Errors: those of the source and the file system; not_found,
// invalid (a source that does not hold what is missing), corrupt (a source with other bytes), budget.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "format/progress.h"
#include "reshard/verbs/repair/damage.h"

namespace dspack::reshard {

struct RepairOptions {
  format::Path folder;
  Scrutiny scrutiny = Scrutiny::bytes;
  unsigned jobs = 4;
};

/// Opens the place to fetch from; called only if something must be fetched.
using OpenSource = std::function<Result<std::unique_ptr<format::Repository>>()>;

struct RepairReport {
  uint64_t checked_files = 0;
  uint64_t damaged_files = 0;       // weight files and others
  uint64_t fetched_tensors = 0;     // tensors of the damaged weight files
  uint64_t fetched_bytes = 0;       // bytes read from the source's weights
  std::vector<std::string> left{};  // files that could not be restored, one line each
};

/// Repairs a complete repository. `packed`: its catalogue.
[[nodiscard]] Result<RepairReport> repair(const format::Checkpoint& packed, const RepairOptions& options,
                                          const OpenSource& open_source, format::FileSystem& files,
                                          format::Progress& progress, const std::stop_token& stop);

/// Whether the disk has room for mending in addition to the existing files. Errors: budget.
[[nodiscard]] Result<void> check_room(const WantedFiles& wanted, const std::vector<FileDamage>& damage,
                                      format::FileSystem& files);

/// Fetches the copies of `plan` into the damaged files and finishes all of them. Adds to `report`. `repository`: null
/// if the plan fetches nothing.
[[nodiscard]] Result<void> mend_files(const WantedFiles& wanted, const std::vector<FileDamage>& damage,
                                      const Plan& plan, const format::Checkpoint& source,
                                      format::Repository* repository, unsigned jobs, format::FileSystem& files,
                                      RepairReport& report, format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
