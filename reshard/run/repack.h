// `reshard SOURCE --by expert --out DIR`: resolve, plan, stream, seal. With `--part i/n` only the source shards of one
// part are read, and `reshard seal` (seal_parts.h) does the rest when all parts are done. If killed at any instant, the
// same call resumes.
// Threads: one call per output folder or part at a time; a second one is refused (conflict). Different parts may run at
// once, in a shared folder or in their own.
// Errors: all errors of reading, planning and writing; conflict, if parts have another count, recipe or source. Before
// the first byte is fetched the source has been catalogued, the plan made and the disk checked; until then nothing is
// created.
#pragma once

#include <memory>
#include <optional>

#include "format/progress.h"
#include "reshard/run/companions.h"
#include "reshard/run/declarations.h"
#include "reshard/run/packed_writer.h"
#include "reshard/run/part.h"

namespace dspack::reshard {

struct RepackOptions {
  Recipe recipe;
  format::Path out;
  unsigned jobs = 4;
  uint64_t seal_batch_bytes = DiskUse().batch_bytes;
  uint64_t held_bytes = kHeldBytes;
  uint64_t first_record_bytes = kFirstRecordBytes;
  /// Digests and sizes that the source's shards must have, in addition to those that the place itself declares. Must
  /// name every shard; may name other files.
  std::optional<Declarations> declared = std::nullopt;
  /// Counts requests to the source: refused requests reduce the number of connections. nullptr: not counted.
  std::shared_ptr<const format::TransferCounters> counters = nullptr;
};

[[nodiscard]] inline DiskUse disk_use(const RepackOptions& options) {
  return {.jobs = options.jobs, .batch_bytes = options.seal_batch_bytes};
}

/// The work of a run, known before it starts.
struct RepackOutlook {
  format::Checkpoint source;
  Plan plan;
  std::vector<Companion> companions;
  uint64_t companion_bytes = 0;
  std::vector<Declarations> declared{};         // by the user's list, and by a list beside the source
  std::optional<std::string> changed_config{};  // config.json of the result, if it differs from the source's
};

/// Peak disk space of the run.
[[nodiscard]] uint64_t disk_bytes(const RepackOutlook& outlook, const DiskUse& use);

/// The number of the given source shards that come from a plain server and that no declared digest covers.
[[nodiscard]] uint64_t unvouched_shards(const RepackOutlook& outlook, const format::Repository& repository,
                                        const std::vector<uint64_t>& shards);

/// `progress`: as in Checkpoint::open.
[[nodiscard]] Result<RepackOutlook> prepare_repack(format::Repository& repository, const RepackOptions& options,
                                                   const std::stop_token& stop, format::Progress* progress = nullptr);

enum class RepackOutcome { made, already_complete };

[[nodiscard]] Result<RepackOutcome> repack(const RepackOutlook& outlook, format::Repository& repository,
                                           const RepackOptions& options, format::FileSystem& files,
                                           format::Progress& progress, const std::stop_token& stop);

/// repack after its first checks, for a caller that holds the folder's lock: from the journal to the manifest.
[[nodiscard]] Result<void> complete_run(const RepackOutlook& outlook, format::Repository& repository,
                                        const RepackOptions& options, format::FileSystem& files,
                                        format::Progress& progress, const std::stop_token& stop);

struct PartOutcome {
  bool repository_is_complete = false;  // there was nothing to do: the repository is sealed
  uint64_t shards = 0;                  // source shards of this part
  uint64_t read_bytes = 0;              // bytes of these shards to be read in this run
  uint32_t done_parts = 0;              // parts that are done, as far as this folder shows
};

[[nodiscard]] Result<PartOutcome> repack_part(const RepackOutlook& outlook, format::Repository& repository,
                                              const RepackOptions& options, Part part, format::FileSystem& files,
                                              format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
