// `reshard repair DIR`: what a packed repository has lost, and what differs from its manifest, is fetched again, and
// nothing else. The result is the repository as it was sealed, byte for byte; what the manifest says is believed.
// Threads: one call per folder at a time; a second one is refused (conflict). Killed at any instant, the same call goes
// on with what was fetched. Memory: as packing. Errors: those of the source and the file system; not_found, invalid (a
// source that does not hold what is missing), corrupt (one whose bytes are others), budget.
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

/// Opens the place to fetch from; called when it is known that something must be fetched.
using OpenSource = std::function<Result<std::unique_ptr<format::Repository>>()>;

struct RepairReport {
  uint64_t checked_files = 0;
  uint64_t damaged_files = 0;       // of weights, and others
  uint64_t fetched_tensors = 0;     // of the weight files among them
  uint64_t fetched_bytes = 0;       // read of the source's weights
  std::vector<std::string> left{};  // files that could not be had again, one line each
};

/// Of a complete repository. `packed`: its catalogue.
[[nodiscard]] Result<RepairReport> repair(const format::Checkpoint& packed, const RepairOptions& options,
                                          const OpenSource& open_source, format::FileSystem& files,
                                          format::Progress& progress, const std::stop_token& stop);

/// Whether the disk has room for what mending takes beside what is there.
[[nodiscard]] Result<void> check_room(const WantedFiles& wanted, const std::vector<FileDamage>& damage,
                                      format::FileSystem& files);

/// Fetches what `plan` says into the damaged files and finishes all of them. Adds to `report`. `repository`: null if
/// the plan fetches nothing.
[[nodiscard]] Result<void> mend_files(const WantedFiles& wanted, const std::vector<FileDamage>& damage,
                                      const Plan& plan, const format::Checkpoint& source,
                                      format::Repository* repository, unsigned jobs, format::FileSystem& files,
                                      RepairReport& report, format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
