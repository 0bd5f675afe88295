// The state of a run in an output folder: whether its work is complete, and how far unfinished work has come.
// Threads: stateless functions. Errors: conflict (work of another plan, source, version, commit or part), corrupt (a
// damaged journal, an unreadable manifest), io.
#pragma once

#include <optional>
#include <vector>

#include "reshard/run/journal.h"
#include "reshard/run/part.h"
#include "reshard/run/repack.h"

namespace dspack::reshard {

/// Plan and state of the source, for the first record of the journal: a run can resume only if they are equal. `part`:
/// set for a part.
[[nodiscard]] format::Json run_identity(const RepackOutlook& outlook, const format::Repository& repository,
                                        std::optional<Part> part = std::nullopt);

/// Whether `out` already holds a finished repository of exactly this plan, with every file at its size. Errors: also
/// corrupt (it was finished, but files are missing or have other sizes).
[[nodiscard]] Result<bool> is_complete(const format::Path& out, const Plan& plan, const format::Repository& repository,
                                       format::FileSystem& files);

/// Finishes a run that was killed between the manifest's rename and its end.
[[nodiscard]] Result<RepackOutcome> finish_complete(const format::Path& out, format::FileSystem& files);

[[nodiscard]] inline format::Path journal_path(const RunScope& scope) {
  return scope.work / "journal";
}

/// Loads the journal in the scope's work folder; its records fit the plan and the scope's shards. Without a journal,
/// nothing is done yet.
[[nodiscard]] Result<JournalLoaded> load_journal(const RunScope& scope, const format::Json& identity, const Plan& plan,
                                                 format::FileSystem& files);

/// How the unfinished work in `out` was started, as a whole or in parts. nullopt: there is none, or no readable
/// journal.
[[nodiscard]] Result<std::optional<JournalHead>> unfinished_work(const format::Path& out, format::FileSystem& files);

/// A part's state according to its journal.
struct LoadedPart {
  Part part;
  JournalState state;
  uint64_t shards = 0;  // number of shards that it has to read
  [[nodiscard]] bool is_done() const { return state.shards.size() == shards; }
};

/// The parts that were started in `out`, by number. Errors: conflict, if they do not belong to this run or have
/// different counts.
[[nodiscard]] Result<std::vector<LoadedPart>> load_parts(const RepackOutlook& outlook,
                                                         const format::Repository& repository, const format::Path& out,
                                                         format::FileSystem& files);

}  // namespace dspack::reshard
