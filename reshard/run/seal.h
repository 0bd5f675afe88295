// The last step of a run: companions, index, card, and the manifest, by whose rename the repository becomes complete.
// Threads: called once, after every planned file is there.
#pragma once

#include <vector>

#include "reshard/run/repack.h"

namespace dspack::reshard {

struct SealInput {
  const RepackOutlook& outlook;
  format::Repository& repository;
  const RepackOptions& options;
  const std::vector<std::optional<format::Digest>>& shard_digests;  // of the source's files that were read whole
  const std::vector<FileDigests>& file_digests;                     // of the plan's files
};

[[nodiscard]] Result<void> seal_repository(const SealInput& input, DurableFolders& folders, format::FileSystem& files,
                                           const std::stop_token& stop);

/// Adds layouts, files, coverage and what readers must know of names to a manifest. `result`: what the files hold;
/// `source`: what it was made of.
void describe_files(format::Manifest& manifest, const std::vector<format::PlannedFile>& planned,
                    const std::vector<FileDigests>& digests, const format::Checkpoint& result,
                    const format::Checkpoint& source);

}  // namespace dspack::reshard
