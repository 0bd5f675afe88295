// Mends the files of a packed repository that hold no weights: the source's are copied again, dspack's own are made
// again, and each gets its name once it has its digest.
// Threads: one call; `jobs` files are read at a time. Errors: those that prevent continuing (network, a full disk); a
// file that cannot be restored is a finding.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/run/companions.h"
#include "reshard/verbs/repair/damage.h"

namespace dspack::reshard {

/// The manifest's companions that are missing or differ, by path.
[[nodiscard]] Result<std::vector<format::CompanionFile>> damaged_companions(const format::Manifest& manifest,
                                                                            const format::Path& out, Scrutiny scrutiny,
                                                                            unsigned jobs, format::FileSystem& files,
                                                                            const std::stop_token& stop);

/// The sources of companions; nullptr: not available.
struct CompanionSource {
  const format::Checkpoint* packed = nullptr;  // catalogue of the damaged repository
  format::Repository* repository = nullptr;
  const format::Checkpoint* catalogue = nullptr;  // catalogue of `repository`
  const Plan* plan = nullptr;                     // plan of the whole repository; set for an ordinary source
};

/// Which parts of the source must be opened to restore the damaged companions.
struct CompanionNeeds {
  bool repository = false;
  bool catalogue = false;  // also the plan
};
[[nodiscard]] CompanionNeeds needs_of(const std::vector<format::CompanionFile>& damaged,
                                      const format::Manifest& manifest);

/// Returns one line per companion that could not be restored.
[[nodiscard]] Result<std::vector<std::string>> mend_companions(const std::vector<format::CompanionFile>& damaged,
                                                               const CompanionSource& source, const format::Path& out,
                                                               const Recipe& recipe, format::FileSystem& files,
                                                               DurableFolders& folders, const std::stop_token& stop);

}  // namespace dspack::reshard
