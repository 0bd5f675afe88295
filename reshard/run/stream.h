// Executes a plan: of every source shard that is not yet done what is wanted is read once, front to back, several at a
// time; its bytes are scattered into the partial files and digested on the way. Shards are begun from the last to the
// first, and wait for their turn in files that several feed (Turns); who waits holds no connection. Over a network a
// few shards are begun with, more as long as more connections bring more (ConnectionGrowth), up to
// `jobs`; where fewer shards are being read than connections pay for, the others fetch ranges of those. How far a shard
// has come is recorded again and again, also when the run is stopped. Threads: called once.
// Memory: a connection has a receive buffer (half a MiB), a shard under way staging buffers (2 MiB); where several
// connections fetch a shard, its pieces come on top (piece_bytes(): with 16 connections 168 MiB at most, and with the
// plan of DeepSeek-V3 51 MiB), what is held until its turn comes (file_digest.h), and what conversions hold
// (converter.h). Errors: as the source and the writer; corrupt if a file changed since the catalogue was read, or is
// not what is declared; budget if the disk runs full.
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
  unsigned jobs = 4;                                           // connections over a network, files of a folder
  const std::vector<Declarations>& declared;                   // as in RepackOutlook
  std::shared_ptr<const format::TransferCounters> counters{};  // as in RepackOptions
  uint64_t first_record_bytes = kFirstRecordBytes;             // likewise
};

/// What a connection fetches of a shard at a time that it shares with others, so that all pieces in memory stay within
/// what a plan of so many tensors leaves of 256 MiB.
[[nodiscard]] uint64_t piece_bytes(unsigned connections, uint64_t shards, uint64_t tensors);

/// What is still to be read of a shard.
[[nodiscard]] uint64_t unread_bytes(const Plan& plan, const format::Checkpoint& source, const JournalState& done,
                                    uint64_t shard);

/// Returns what the source shards of the scope have yielded, those that `done` already knows included; by number, with
/// nothing for others.
[[nodiscard]] Result<std::vector<ShardDone>> stream_shards(const StreamInput& input, const JournalState& done,
                                                           PackedWriter& writer, format::Progress& progress,
                                                           const std::stop_token& stop);

}  // namespace dspack::reshard
