// Executes a plan: of every source shard that is not yet done what is wanted is read once, front to back, several at a
// time; its bytes are scattered into the partial files and digested on the way. Shards are begun from the last to the
// first, and wait for their turn in files that several feed (turns.h). The connections of jobs that wait, or find no
// shard any more, fetch ranges of the shards under way. How far a shard has come is recorded again and again, also when
// the run is stopped. Threads: called once. Memory: a job has the
// receive buffer of its connection (half a MiB) and one staging buffer (2 MiB), or, while it lends its connection, one
// piece (4 MiB); what conversions hold comes on top (converter.h). Errors: as the source and the writer; corrupt if a
// file changed since the catalogue was read, or is not what is declared; budget if the disk runs full.
#pragma once

#include "format/progress.h"
#include "reshard/declarations.h"
#include "reshard/packed_writer.h"

namespace dspack::reshard {

struct StreamInput {
  const Plan& plan;
  const format::Checkpoint& source;
  format::Repository& repository;
  const RunScope& scope;
  format::FileSystem& files;
  unsigned jobs = 4;
  const std::optional<Declarations>& declared;      // as in RepackOptions
  uint64_t first_record_bytes = kFirstRecordBytes;  // likewise
};

/// What is still to be read of a shard.
[[nodiscard]] uint64_t unread_bytes(const Plan& plan, const format::Checkpoint& source, const JournalState& done,
                                    uint64_t shard);

/// Returns what the source shards of the scope have yielded, those that `done` already knows included; by number, with
/// nothing for others.
[[nodiscard]] Result<std::vector<ShardDone>> stream_shards(const StreamInput& input, const JournalState& done,
                                                           PackedWriter& writer, format::Progress& progress,
                                                           const std::stop_token& stop);

}  // namespace dspack::reshard
