// The last step of a run: companions, index, card, and the manifest, whose rename makes the repository complete.
// Threads: called once, after every planned file is complete.
#pragma once

#include <vector>

#include "reshard/run/repack.h"

namespace dspack::reshard {

struct SealInput {
  const RepackOutlook& outlook;
  format::Repository& repository;
  const RepackOptions& options;
  const std::vector<std::optional<format::Digest>>& shard_digests;  // per source file; set for those read whole
  const std::vector<FileDigests>& file_digests;                     // per file of the plan
};

[[nodiscard]] Result<void> seal_repository(const SealInput& input, DurableFolders& folders, format::FileSystem& files,
                                           const std::stop_token& stop);

/// Adds layouts, files, coverage and required features of names to a manifest. `result`: the tensors in the files;
/// `source`: the catalogue that they were made from.
void describe_files(format::Manifest& manifest, const std::vector<format::PlannedFile>& planned,
                    const std::vector<FileDigests>& digests, const format::Checkpoint& result,
                    const format::Checkpoint& source);

}  // namespace dspack::reshard
