// Executes a plan: every source shard that is not yet done is read once, front to back, several at a time; its bytes
// are scattered into the partial files and digested on the way.
// Threads: called once. Memory: jobs x the receive buffer of a connection (half a MiB) plus one MiB while sealing.
// Errors: as the source and the writer; corrupt if a file changed since the catalogue was read.
#pragma once

#include "format/progress.h"
#include "reshard/packed_writer.h"

namespace dspack::reshard {

struct StreamInput {
  const Plan& plan;
  const format::Checkpoint& source;
  format::Repository& repository;
  unsigned jobs = 4;
};

/// Returns the digest of every source shard, those that `done` already knows included.
[[nodiscard]] Result<std::vector<format::Digest>> stream_shards(const StreamInput& input, const JournalState& done,
                                                                PackedWriter& writer, Journal& journal,
                                                                format::Progress& progress,
                                                                const std::stop_token& stop);

}  // namespace dspack::reshard
