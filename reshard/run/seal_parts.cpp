#include "reshard/run/seal_parts.h"

#include <fmt/format.h>

#include "reshard/run/join_parts.h"
#include "reshard/run/output_folder.h"

namespace dspack::reshard {
namespace {

using format::Path;

/// What is still to be done before parts can be joined, in words; empty: nothing.
std::string unfinished_text(const std::vector<LoadedPart>& parts) {
  if (parts.empty()) return "no part was begun";
  const uint32_t count = parts.front().part.count;
  constexpr size_t kNamed = 5;
  std::vector<std::string> words;
  size_t next = 0;
  for (uint32_t number = 1; number <= count; ++number) {
    if (next == parts.size() || parts[next].part.number != number) {
      words.push_back(fmt::format("part {}/{} was not begun here", number, count));
      continue;
    }
    const LoadedPart& loaded = parts[next++];
    if (!loaded.is_done())
      words.push_back(fmt::format("part {}/{} has {} of its {} source shards to go", number, count,
                                  loaded.shards - loaded.state.shards.size(), loaded.shards));
  }
  const size_t more = words.size() > kNamed ? words.size() - kNamed : 0;
  words.resize(words.size() - more);
  return fmt::format("{}{}", fmt::join(words, ", "), more == 0 ? "" : fmt::format(", and {} more", more));
}

/// The journal of one process that has done what the parts have done.
std::string joint_journal(const format::Json& identity, const std::vector<LoadedPart>& parts) {
  std::string text = journal_line(identity);
  std::vector<FileSealed> sealed;
  for (const LoadedPart& loaded : parts) {
    for (const auto& [shard, record] : loaded.state.shards)
      text += journal_line(record);
    for (const auto& [file, record] : loaded.state.files)
      sealed.push_back(record);
  }
  if (!sealed.empty()) text += journal_line(sealed);
  return text;
}

/// Turns the work of the parts into that of one process, unless that is done.
Result<void> join_work(const RepackOutlook& outlook, const format::Repository& repository, const Path& out,
                       format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  const format::Json identity = run_identity(outlook, repository);
  const RunScope scope = whole_scope(outlook.plan, out);
  TRY_ASSIGN(const JournalLoaded joint, load_journal(scope, identity, outlook.plan, files));
  if (joint.valid_bytes == 0) {
    TRY_ASSIGN(const std::vector<LoadedPart> parts, load_parts(outlook, repository, out, files));
    if (const std::string text = unfinished_text(parts); !text.empty()) {
      return Error{ErrorKind::conflict,
                   fmt::format("{}: is not complete: {}; the command of a part goes on with it, and "
                               "then seal can be run again",
                               out.string(), text)};
    }
    TRY(join_parts(outlook.plan, parts, out, files, progress, stop));
    TRY(format::write_sealed(files, journal_path(scope), joint_journal(identity, parts)));
  } else if (joint.state.shards.size() != scope.shards.size()) {
    return Error{ErrorKind::conflict,
                 fmt::format("{}: is not complete: {} of {} source shards are to go; the command that began it goes on",
                             out.string(), scope.shards.size() - joint.state.shards.size(), scope.shards.size())};
  }
  // Only now: what the parts have left is needed until the journal speaks for all.
  return files.remove_tree(work_mark(out, WorkKind::parts));
}

}  // namespace

Result<RepackOutcome> seal_parts(const RepackOutlook& outlook, format::Repository& repository,
                                 const RepackOptions& options, format::FileSystem& files, format::Progress& progress,
                                 const std::stop_token& stop) {
  TRY_ASSIGN(const bool complete, is_complete(options.out, outlook.plan, repository, files));
  if (complete) return finish_complete(options.out, files);
  const auto lock = lock_work_folder(options.out, format::LockKind::exclusive, files);
  if (!lock) return lock.error();
  TRY_ASSIGN(const bool completed_meanwhile, is_complete(options.out, outlook.plan, repository, files));
  if (completed_meanwhile) return finish_complete(options.out, files);
  TRY(join_work(outlook, repository, options.out, files, progress, stop));
  TRY(complete_run(outlook, repository, options, files, progress, stop));
  return RepackOutcome::made;
}

}  // namespace dspack::reshard
