// `reshard SOURCE --by expert --out DIR`: resolve, plan, stream, seal; with `--part i/n` the source shards of one part
// alone are read, and `reshard seal` does the rest (seal_parts.h) when all parts are done. Killed at any instant, the
// same call goes on.
// Threads: one call per output folder or part at a time; a second one is refused (conflict). Different parts run at
// once, in one folder that they share or in folders of their own.
// Errors: everything that reading, planning and writing can meet; conflict: parts of another count, recipe or source.
// Before the first byte is fetched the source has been catalogued, the plan made and the disk checked; until then
// nothing is created.
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
  /// What the source's shards must be; each must be named in it, other files may be. What the place itself declares
  /// counts besides.
  std::optional<Declarations> declared = std::nullopt;
  /// Of the requests to the source: who is refused uses fewer connections. nullptr: not counted.
  std::shared_ptr<const format::TransferCounters> counters = nullptr;
};

[[nodiscard]] inline DiskUse disk_use(const RepackOptions& options) {
  return {.jobs = options.jobs, .batch_bytes = options.seal_batch_bytes};
}

/// What a run will do, known before it does anything.
struct RepackOutlook {
  format::Checkpoint source;
  Plan plan;
  std::vector<Companion> companions;
  uint64_t companion_bytes = 0;
  std::vector<Declarations> declared{};         // by the user's list, and by one beside the source
  std::optional<std::string> changed_config{};  // config.json of the result, where it is not the source's
};

/// Most disk that it takes at once.
[[nodiscard]] uint64_t disk_bytes(const RepackOutlook& outlook, const DiskUse& use);

/// Of source shards, by number: those that came from a plain server without anybody's word on what they are.
[[nodiscard]] uint64_t unvouched_shards(const RepackOutlook& outlook, const format::Repository& repository,
                                        const std::vector<uint64_t>& shards);

/// `progress`: as Checkpoint::open has it.
[[nodiscard]] Result<RepackOutlook> prepare_repack(format::Repository& repository, const RepackOptions& options,
                                                   const std::stop_token& stop, format::Progress* progress = nullptr);

enum class RepackOutcome { made, already_complete };

[[nodiscard]] Result<RepackOutcome> repack(const RepackOutlook& outlook, format::Repository& repository,
                                           const RepackOptions& options, format::FileSystem& files,
                                           format::Progress& progress, const std::stop_token& stop);

/// The same behind its first checks, for who holds the folder's lock: from what the journal says to the manifest.
[[nodiscard]] Result<void> complete_run(const RepackOutlook& outlook, format::Repository& repository,
                                        const RepackOptions& options, format::FileSystem& files,
                                        format::Progress& progress, const std::stop_token& stop);

struct PartOutcome {
  bool repository_is_complete = false;  // there was nothing to do: it is sealed
  uint64_t shards = 0;                  // of this part
  uint64_t read_bytes = 0;              // of them, in this run
  uint32_t done_parts = 0;              // of all parts, as far as this folder shows
};

[[nodiscard]] Result<PartOutcome> repack_part(const RepackOutlook& outlook, format::Repository& repository,
                                              const RepackOptions& options, Part part, format::FileSystem& files,
                                              format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
