// Executes a plan: reads the wanted bytes of every unfinished source shard once, front to back, several shards at a
// time; scatters them into the partial files and digests them on the way. Shards are started from the last to the first
// and wait for their turn in files that several shards feed (Turns); a waiting shard holds no connection. Over a
// network, reading starts with a few shards and adds more as long as more connections raise the rate
// (ConnectionGrowth), up to `jobs`; if there are fewer shards to read than useful connections, the others fetch ranges
// of those shards. A shard's progress is recorded repeatedly, and when the run is stopped.
// Threads: called once.
// Memory: a receive buffer per connection (half a MiB), staging buffers per shard under way (2 MiB); if several
// connections fetch a shard, its pieces in addition (piece_bytes()), tensors held until their turn (file_digest.h), and
// what conversions hold (converter.h).
// Errors: as the source and the writer; corrupt if a file changed since it was catalogued, or differs from what is
// declared; budget if the disk runs full.
#pragma once

#include <memory>

#include "format/progress.h"
#include "reshard/run/declarations.h"
#include "reshard/run/packed_writer.h"

namespace dspack::reshard {

struct StreamInput {
  const Plan& plan;
  const format::Checkpoint& source;
  format::Repository& repository;
  const RunScope& scope;
  format::FileSystem& files;
  unsigned jobs = 4;                                           // connections over a network, or files of a folder
  const std::vector<Declarations>& declared;                   // as in RepackOutlook
  std::shared_ptr<const format::TransferCounters> counters{};  // as in RepackOptions
  uint64_t first_record_bytes = kFirstRecordBytes;             // as in RepackOptions
};

/// Most connections, at most 64 and at least 16, with which a run over `shards` shards stays within 256 MiB of memory,
/// where a shard is fetched in the smallest pieces.
[[nodiscard]] unsigned connections_within_memory(uint64_t shards, uint64_t tensors);

/// The size of the pieces in which several connections fetch a shard. Keeps all pieces in memory within the rest of 256
/// MiB that a plan with `tensors` tensors leaves.
[[nodiscard]] uint64_t piece_bytes(unsigned connections, uint64_t shards, uint64_t tensors);

/// Bytes of a shard that are still to be read.
[[nodiscard]] uint64_t unread_bytes(const Plan& plan, const format::Checkpoint& source, const JournalState& done,
                                    uint64_t shard);

/// Returns the results of the scope's source shards, including those that `done` has; indexed by shard number, empty
/// for other shards.
[[nodiscard]] Result<std::vector<ShardDone>> stream_shards(const StreamInput& input, const JournalState& done,
                                                           PackedWriter& writer, format::Progress& progress,
                                                           const std::stop_token& stop);

}  // namespace dspack::reshard
