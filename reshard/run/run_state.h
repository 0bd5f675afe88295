// What an output folder says of a run: whether its work is complete, and how far unfinished work has come.
// Threads: functions without state. Errors: conflict (of another plan, source, version, commit or part), corrupt (a
// damaged journal, a manifest that does not read), io.
#pragma once

#include <optional>
#include <vector>

#include "reshard/run/journal.h"
#include "reshard/run/part.h"
#include "reshard/run/repack.h"

namespace dspack::reshard {

/// Plan and state of the source, for the first record of the journal: who goes on must find the same. `part`: of a
/// part.
[[nodiscard]] format::Json run_identity(const RepackOutlook& outlook, const format::Repository& repository,
                                        std::optional<Part> part = std::nullopt);

/// Whether a finished repository of this very plan is in `out` already, every file there with its size. Errors: also
/// corrupt (one is finished, and files are missing or have other sizes).
[[nodiscard]] Result<bool> is_complete(const format::Path& out, const Plan& plan, const format::Repository& repository,
                                       format::FileSystem& files);

/// What a run does that was killed between the manifest's rename and its end.
[[nodiscard]] Result<RepackOutcome> finish_complete(const format::Path& out, format::FileSystem& files);

[[nodiscard]] inline format::Path journal_path(const RunScope& scope) {
  return scope.work / "journal";
}

/// The journal in the work folder of the scope; its records fit the plan and the scope's shards. None yet: nothing is
/// done.
[[nodiscard]] Result<JournalLoaded> load_journal(const RunScope& scope, const format::Json& identity, const Plan& plan,
                                                 format::FileSystem& files);

/// How the unfinished work in `out` was begun, whole or in parts. nullopt: there is none, or no journal that reads.
[[nodiscard]] Result<std::optional<JournalHead>> unfinished_work(const format::Path& out, format::FileSystem& files);

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

}  // namespace dspack::reshard
