// `reshard SOURCE --by expert --out DIR --part i/n`: reads the source shards of one part, and seals the files that are
// wholly made of them. `reshard seal` does the rest (seal_parts.h) when all parts are done.
// Threads: one call per part at a time; another is refused (conflict). Different parts run at once, in one folder that
// they share or in folders of their own. Errors: those of repack; conflict: parts of another count, recipe or source.
#pragma once

#include "reshard/run/run_state.h"

namespace dspack::reshard {

/// What the journal of a part says.
struct LoadedPart {
  Part part;
  JournalState state;
  uint64_t shards = 0;  // that it has to read
  [[nodiscard]] bool is_done() const { return state.shards.size() == shards; }
};
/// The parts that have been begun in `out`, by number. Errors: conflict: they are not parts of this run, or of
/// different counts.
[[nodiscard]] Result<std::vector<LoadedPart>> load_parts(const RepackOutlook& outlook,
                                                         const format::Repository& repository, const format::Path& out,
                                                         format::FileSystem& files);

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
