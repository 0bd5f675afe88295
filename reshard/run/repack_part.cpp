#include "reshard/run/repack_part.h"

#include <algorithm>

#include <fmt/format.h>

#include "reshard/run/output_folder.h"
#include "reshard/run/stream.h"

namespace dspack::reshard {
namespace {

using format::Path;

/// "2-of-4", as work_of_part names it.
std::optional<Part> part_of_folder(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  const size_t at = name.find(kOf);
  if (at == std::string::npos) return std::nullopt;
  const auto part = parse_part(name.substr(0, at) + "/" + name.substr(at + kOf.size()));
  return part ? std::optional(*part) : std::nullopt;
}

/// Once parts are being joined, some of their files have moved.
Result<void> check_not_joined(const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const auto there, files.stat(part_folder(out)));
  if (!there) return {};
  return Error{ErrorKind::conflict, fmt::format("{}: its parts are being joined; reshard seal {} goes on with that",
                                                out.string(), out.string())};
}

Result<std::unique_ptr<format::FileLock>> lock_part(const Path& folder, Part part, format::FileSystem& files) {
  auto lock = files.lock(folder / "lock", format::LockKind::exclusive);
  if (lock || lock.error().kind != ErrorKind::conflict) return lock;
  return Error{ErrorKind::conflict,
               fmt::format("{}: another reshard is working on part {}", folder.string(), to_string(part))};
}

}  // namespace

Result<std::vector<LoadedPart>> load_parts(const RepackOutlook& outlook, const format::Repository& repository,
                                           const Path& out, format::FileSystem& files) {
  const Path folder = work_mark(out, WorkKind::parts);
  std::vector<LoadedPart> parts;
  TRY_ASSIGN(const auto there, files.stat(folder));
  if (!there) return parts;
  TRY_ASSIGN(const std::vector<std::string> names, files.list(folder));
  for (const std::string& name : names) {
    const auto part = part_of_folder(name);
    if (!part) return Error{ErrorKind::conflict, (folder / name).string() + ": is no part of a repack; remove it"};
    const RunScope scope = part_scope(outlook.plan, out, *part);
    TRY_ASSIGN(JournalLoaded loaded, load_journal(scope, run_identity(outlook, repository, part), outlook.plan, files));
    // A folder without a journal has just been begun, or was left when it was.
    if (loaded.valid_bytes != 0) parts.push_back({*part, std::move(loaded.state), scope.shards.size()});
  }
  std::ranges::sort(parts, {}, [](const LoadedPart& loaded) { return loaded.part.number; });
  for (const LoadedPart& loaded : parts) {
    if (loaded.part.count == parts.front().part.count) continue;
    return Error{ErrorKind::conflict,
                 fmt::format("{}: holds parts {} and {}; all must be of one count: remove {} to split the work anew",
                             folder.string(), to_string(parts.front().part), to_string(loaded.part), out.string())};
  }
  return parts;
}

Result<PartOutcome> repack_part(const RepackOutlook& outlook, format::Repository& repository,
                                const RepackOptions& options, Part part, format::FileSystem& files,
                                format::Progress& progress, const std::stop_token& stop) {
  const Plan& plan = outlook.plan;
  const RunScope scope = part_scope(plan, options.out, part);
  const PartOutcome nothing_to_do{.repository_is_complete = true};
  TRY_ASSIGN(const bool complete, is_complete(options.out, plan, repository, files));
  if (complete) return nothing_to_do;
  TRY(check_target(options.out, WorkKind::parts, files));
  TRY(check_not_joined(options.out, files));
  const format::Json identity = run_identity(outlook, repository, part);
  TRY_ASSIGN(const JournalLoaded before, load_journal(scope, identity, plan, files));
  const auto sealed = [&before](uint32_t file) { return before.state.files.contains(file); };
  TRY_ASSIGN(const uint64_t need, missing_bytes(plan, scope, sealed, disk_use(options), files));
  TRY(check_disk(need, options.out, files));
  TRY_ASSIGN(const uint64_t need_files, missing_files(plan, scope, sealed, disk_use(options), files));
  TRY(check_free_files(need_files, options.out, files));

  TRY_ASSIGN(const auto shared, lock_work_folder(options.out, format::LockKind::shared, files));
  // Again under the lock: the parts may have been sealed since, or another kind of work begun.
  TRY_ASSIGN(const bool completed_meanwhile, is_complete(options.out, plan, repository, files));
  if (completed_meanwhile) return nothing_to_do;
  TRY(check_target(options.out, WorkKind::parts, files));
  TRY(check_not_joined(options.out, files));
  DurableFolders folders(files, options.out);
  TRY(folders.make(scope.work));
  TRY_ASSIGN(const auto lock, lock_part(scope.work, part, files));
  TRY_ASSIGN(const JournalLoaded done, load_journal(scope, identity, plan, files));
  TRY_ASSIGN(const auto journal, Journal::open(files, journal_path(scope), identity, done.valid_bytes));
  TRY(load_parts(outlook, repository, options.out, files));  // with this one among them, all must be of one run
  PackedWriter writer(plan, scope, files, *journal, writer_limits(options));
  TRY(writer.resume(done.state));

  PartOutcome outcome{.shards = scope.shards.size()};
  for (const uint64_t shard : scope.shards)
    outcome.read_bytes += unread_bytes(plan, outlook.source, done.state, shard);
  const StreamInput input{plan,
                          outlook.source,
                          repository,
                          scope,
                          files,
                          options.jobs,
                          outlook.declared,
                          options.counters,
                          options.first_record_bytes};
  TRY(stream_shards(input, done.state, writer, progress, stop));
  progress.finished();
  TRY_ASSIGN(const std::vector<LoadedPart> parts, load_parts(outlook, repository, options.out, files));
  outcome.done_parts = static_cast<uint32_t>(std::ranges::count_if(parts, &LoadedPart::is_done));
  return outcome;
}

}  // namespace dspack::reshard
