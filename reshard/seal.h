// The last step of a run: companions, index, card, and the manifest, by whose rename the repository becomes complete.
// Threads: called once, after every planned file is sealed.
#pragma once

#include "reshard/repack.h"

namespace dspack::reshard {

struct SealInput {
  const RepackOutlook& outlook;
  format::Repository& repository;
  const RepackOptions& options;
  const std::vector<format::Digest>& shard_digests;
};

[[nodiscard]] Result<void> seal_repository(const SealInput& input, PackedWriter& writer, format::FileSystem& files,
                                           const std::stop_token& stop);

}  // namespace dspack::reshard
