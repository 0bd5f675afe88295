// The files of a packed repository that hold no weights, when some are damaged: those of the source are copied again,
// those that we write are made again, and each gets its name when it has its digest.
// Threads: one call; `jobs` files are read at a time. Errors: what keeps from going on (network, a full disk); a file
// that cannot be had again is a finding.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/run/companions.h"
#include "reshard/verbs/repair/damage.h"

namespace dspack::reshard {

/// Of the manifest's companions, those that are not as they must be; by path.
[[nodiscard]] Result<std::vector<format::CompanionFile>> damaged_companions(const format::Manifest& manifest,
                                                                            const format::Path& out, Scrutiny scrutiny,
                                                                            unsigned jobs, format::FileSystem& files,
                                                                            const std::stop_token& stop);

/// What companions can be had from. Unset: not from there.
struct CompanionSource {
  const format::Checkpoint* packed = nullptr;  // of the damaged repository
  format::Repository* repository = nullptr;
  const format::Checkpoint* catalogue = nullptr;  // of `repository`
  const Plan* plan = nullptr;                     // the whole one, of an ordinary source
};

/// What must be known of the source to have these again.
struct CompanionNeeds {
  bool repository = false;
  bool catalogue = false;  // and the plan
};
[[nodiscard]] CompanionNeeds needs_of(const std::vector<format::CompanionFile>& damaged,
                                      const format::Manifest& manifest);

/// One line for each that could not be had again.
[[nodiscard]] Result<std::vector<std::string>> mend_companions(const std::vector<format::CompanionFile>& damaged,
                                                               const CompanionSource& source, const format::Path& out,
                                                               const Recipe& recipe, format::FileSystem& files,
                                                               DurableFolders& folders, const std::stop_token& stop);

}  // namespace dspack::reshard
