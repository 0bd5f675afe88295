#include "reshard/run/repack.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/http/headers.h"
#include "reshard/run/changed_config.h"
#include "reshard/run/output_folder.h"
#include "reshard/run/run_state.h"
#include "reshard/run/seal.h"
#include "reshard/run/source_facts.h"
#include "reshard/run/stream.h"

namespace dspack::reshard {
namespace {

using format::Json;
using format::Path;

// Manifest, index, card and journal: a few hundred bytes per tensor.
constexpr uint64_t kBookkeepingBytesPerTensor = 512;

/// Bytes of everything except the weight files.
uint64_t other_bytes(const RepackOutlook& outlook) {
  return outlook.companion_bytes + outlook.source.tensors().size() * kBookkeepingBytesPerTensor;
}

/// Disk space that the run still needs.
Result<uint64_t> bytes_to_write(const RepackOutlook& outlook, const RunScope& scope, const JournalState& done,
                                const RepackOptions& options, format::FileSystem& files) {
  const auto sealed = [&done](uint32_t file) { return done.files.contains(file); };
  TRY_ASSIGN(const uint64_t missing, missing_bytes(outlook.plan, scope, sealed, disk_use(options), files));
  return missing + other_bytes(outlook);
}

// Manifest, index, card and kept headers, journal and lock, and their folders.
constexpr uint64_t kBookkeepingFiles = 10;

/// Number of files that the run still creates.
Result<uint64_t> files_to_make(const RepackOutlook& outlook, const RunScope& scope, const JournalState& done,
                               const RepackOptions& options, format::FileSystem& files) {
  const auto sealed = [&done](uint32_t file) { return done.files.contains(file); };
  TRY_ASSIGN(const uint64_t missing, missing_files(outlook.plan, scope, sealed, disk_use(options), files));
  return missing + outlook.companions.size() + kBookkeepingFiles;
}

/// A list that does not name every shard, or has another size, proves nothing: report it before the transfer.
Result<void> check_list(const Declarations& list, const format::Checkpoint& source,
                        const format::Repository& repository) {
  for (const format::CheckpointFile& shard : source.files()) {
    const auto entry = list.files.find(shard.path);
    if (entry == list.files.end())
      return Error{ErrorKind::invalid, fmt::format("{}: does not name {}", list.by, shard.path)};
    if (entry->second.size_bytes.value_or(shard.size_bytes) == shard.size_bytes) continue;
    return Error{ErrorKind::invalid, fmt::format("{}: has {} bytes, {} declares {}", repository.locate(shard.path),
                                                 shard.size_bytes, list.by, *entry->second.size_bytes)};
  }
  return {};
}

/// The declarations about the source's files: the user's list, and a list beside them.
Result<std::vector<Declarations>> find_declarations(format::Repository& repository, const RepackOptions& options,
                                                    std::vector<std::string>& warnings, const std::stop_token& stop) {
  std::vector<Declarations> lists;
  if (options.declared) lists.push_back(*options.declared);
  if (repository.kind() == format::RepositoryKind::hub) return lists;  // the Hub declares digests itself
  const auto text = repository.read_text(kChecksumList, kMaxListBytes, stop);
  if (!text && text.error().kind == ErrorKind::not_found) return lists;
  if (!text) return text.error();
  auto list = parse_checksum_list(*text, format::without_password(repository.locate(kChecksumList)));
  if (list)
    lists.push_back(std::move(*list));
  else
    warnings.push_back(list.error().message + "; it is not used");
  return lists;
}

/// The digests of tensors that were read without conversion, stored or not.
std::map<uint32_t, format::Digest> streamed_digests(const Plan& plan, const std::vector<ShardDone>& yielded) {
  std::map<uint32_t, format::Digest> streamed;
  for (size_t shard = 0; shard < yielded.size(); ++shard) {
    for (size_t i = 0; i < plan.shards[shard].size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      if (copy.conversion == Conversion::none) streamed[copy.tensor] = yielded[shard].tensors[i].whole;
    }
  }
  return streamed;
}

/// Equality was established by samples; this checks whole tensors.
Result<void> check_aliases(const Plan& plan, const format::Checkpoint& source, const std::vector<ShardDone>& yielded) {
  if (plan.aliases.empty()) return {};
  const auto streamed = streamed_digests(plan, yielded);
  for (const Alias& alias : plan.aliases) {
    if (streamed.at(alias.tensor) == streamed.at(alias.stored)) continue;
    return Error{
        ErrorKind::unsupported,
        fmt::format("tensors \"{}\" and \"{}\" are equal where they were sampled, and not everywhere; remove the "
                    "output folder and repack without dedupe",
                    source.tensors()[alias.tensor].name, source.tensors()[alias.stored].name)};
  }
  return {};
}

/// Tensors that a conversion needed were read separately. They must equal those streamed with their shard, which was
/// compared with the declarations.
Result<void> check_needed(const Plan& plan, const format::Checkpoint& source, const std::vector<ShardDone>& yielded,
                          const Path& out) {
  const auto streamed = streamed_digests(plan, yielded);
  for (size_t shard = 0; shard < yielded.size(); ++shard) {
    for (size_t i = 0; i < plan.shards[shard].size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      const std::vector<format::Digest>& needed = yielded[shard].tensors[i].needed;
      for (size_t n = 0; n < copy.needs.size(); ++n) {
        if (n < needed.size() && needed[n] == streamed.at(copy.needs[n])) continue;
        return Error{ErrorKind::corrupt,
                     fmt::format("tensor \"{}\" read differently twice; damaged on the way, or the source has changed: "
                                 "reshard repair {} reads it again and resumes",
                                 source.tensors()[copy.needs[n]].name, out.string())};
      }
    }
  }
  return {};
}

/// On the Hub, compares the catalogue with the listing: otherwise a differing source would fail only at the end of a
/// run.
Result<void> check_listing(const format::Checkpoint& source, format::Repository& repository,
                           const std::stop_token& stop) {
  if (!repository.hub_origin()) return {};
  const auto listed = repository.list(stop);
  if (!listed) return listed.error();
  if (!*listed) return {};
  std::map<std::string_view, const format::ListedFile*> files;
  for (const format::ListedFile& file : **listed)
    files.emplace(file.path, &file);
  for (const format::CheckpointFile& shard : source.files()) {
    const auto found = files.find(shard.path);
    const auto wrong = [&](const std::string& reason) {
      return Error{ErrorKind::corrupt, fmt::format("{}: {}", repository.locate(shard.path), reason)};
    };
    if (found == files.end()) return wrong("is there, and the Hub does not list it");
    const format::ListedFile& file = *found->second;
    if (file.size_bytes != shard.size_bytes)
      return wrong(fmt::format("has {} bytes, the Hub lists it with {}", shard.size_bytes, file.size_bytes));
    const auto digest = format::parse_digest(shard.version);
    if (file.sha256 && digest && *file.sha256 != *digest)
      return wrong(fmt::format("its digest is {}, the Hub lists it with {}", shard.version, to_hex(*file.sha256)));
  }
  return {};
}

WriterLimits writer_limits(const RepackOptions& options) {
  return {.disk = disk_use(options), .held_bytes = options.held_bytes};
}

/// The input for reading the shards of `scope` with stream_shards. The result borrows all arguments.
StreamInput stream_input(const RepackOutlook& outlook, format::Repository& repository, const RunScope& scope,
                         const RepackOptions& options, format::FileSystem& files) {
  return {outlook.plan,
          outlook.source,
          repository,
          scope,
          files,
          options.jobs,
          outlook.declared,
          options.counters,
          options.first_record_bytes};
}

}  // namespace

uint64_t disk_bytes(const RepackOutlook& outlook, const DiskUse& use) {
  return disk_bytes(outlook.plan, use) + other_bytes(outlook);
}

Result<RepackOutlook> prepare_repack(format::Repository& repository, const RepackOptions& options,
                                     const std::stop_token& stop, format::Progress* progress) {
  TRY(check_apart(repository, options.out));
  TRY_ASSIGN(format::Checkpoint source, format::Checkpoint::open(repository, options.jobs, stop, progress));
  if (options.declared) TRY(check_list(*options.declared, source, repository));
  TRY(check_listing(source, repository, stop));
  TRY_ASSIGN(const Recipe recipe, resolve_layers(options.recipe, repository, stop));
  TRY_ASSIGN(const SourceFacts facts, find_facts(recipe, source, repository, options.jobs, stop));
  auto plan = make_plan(recipe, source, facts);
  if (!plan) return plan.error().in(repository.description());
  RepackOutlook outlook{std::move(source), std::move(plan).value(), {}, 0};
  TRY_ASSIGN(outlook.changed_config, changed_config(outlook.plan, repository, stop));
  TRY_ASSIGN(outlook.companions, find_companions(repository, options.jobs, stop));
  TRY_ASSIGN(outlook.declared, find_declarations(repository, options, outlook.plan.warnings, stop));
  for (Companion& companion : outlook.companions) {
    const std::vector<Declared> listed = declared_of(companion.source_path, outlook.declared, std::nullopt);
    companion.declared.insert(companion.declared.end(), listed.begin(), listed.end());
  }
  if (outlook.changed_config) TRY(set_aside_config(outlook.companions, outlook.plan, repository));
  for (const Companion& companion : outlook.companions)
    outlook.companion_bytes += companion.size_bytes;
  return outlook;
}

uint64_t unvouched_shards(const RepackOutlook& outlook, const format::Repository& repository,
                          const std::vector<uint64_t>& shards) {
  if (repository.kind() != format::RepositoryKind::http) return 0;
  return static_cast<uint64_t>(std::ranges::count_if(shards, [&](uint64_t shard) {
    const ShardRead& read = outlook.plan.reads[shard];
    const format::CheckpointFile& file = outlook.source.files()[shard];
    const bool vouched = read.whole && !declared_of(file.path, outlook.declared, file.declared).empty();
    return !read.ranges.empty() && !vouched;
  }));
}

Result<RepackOutcome> repack(const RepackOutlook& outlook, format::Repository& repository, const RepackOptions& options,
                             format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  TRY_ASSIGN(const bool complete, is_complete(options.out, outlook.plan, repository, files));
  if (complete) return finish_complete(options.out, files);
  TRY(check_target(options.out, WorkKind::repack, files));
  const RunScope scope = whole_scope(outlook.plan, options.out);
  TRY_ASSIGN(const JournalLoaded before, load_journal(scope, run_identity(outlook, repository), outlook.plan, files));
  TRY_ASSIGN(const uint64_t need, bytes_to_write(outlook, scope, before.state, options, files));
  TRY(check_disk(need, options.out, files));
  TRY_ASSIGN(const uint64_t need_files, files_to_make(outlook, scope, before.state, options, files));
  TRY(check_free_files(need_files, options.out, files));

  TRY_ASSIGN(const auto lock, lock_work_folder(options.out, format::LockKind::exclusive, files));
  // Again under the lock: another run may have made progress or finished in the meantime.
  TRY_ASSIGN(const bool completed_meanwhile, is_complete(options.out, outlook.plan, repository, files));
  if (completed_meanwhile) return finish_complete(options.out, files);
  TRY(check_target(options.out, WorkKind::repack, files));
  TRY(complete_run(outlook, repository, options, files, progress, stop));
  return RepackOutcome::made;
}

Result<void> complete_run(const RepackOutlook& outlook, format::Repository& repository, const RepackOptions& options,
                          format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  const Plan& plan = outlook.plan;
  const RunScope scope = whole_scope(plan, options.out);
  const Json identity = run_identity(outlook, repository);
  TRY_ASSIGN(const JournalLoaded done, load_journal(scope, identity, plan, files));
  TRY_ASSIGN(const auto journal, Journal::open(files, journal_path(scope), identity, done.valid_bytes));
  PackedWriter writer(plan, scope, files, *journal, writer_limits(options));
  TRY(writer.resume(done.state));
  const StreamInput input = stream_input(outlook, repository, scope, options, files);
  TRY_ASSIGN(const std::vector<ShardDone> yielded, stream_shards(input, done.state, writer, progress, stop));
  if (const uint64_t again = writer.read_back_bytes(); again != 0)
    progress.note(fmt::format("{} were read back from the output for the digests of files", size_words(again)));
  TRY(check_needed(plan, outlook.source, yielded, options.out));
  TRY(check_aliases(plan, outlook.source, yielded));
  std::vector<std::optional<format::Digest>> shard_digests;
  shard_digests.reserve(yielded.size());
  for (const ShardDone& shard : yielded)
    shard_digests.push_back(shard.sha256);
  TRY(seal_repository({outlook, repository, options, shard_digests, writer.digests()}, writer.folders(), files, stop));
  progress.finished();
  return {};
}

namespace {

/// Once parts are being joined, some of their files have moved.
Result<void> check_not_joined(const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const auto there, files.stat(part_folder(out)));
  if (!there) return {};
  return Error{ErrorKind::conflict,
               fmt::format("{}: its parts are being joined; reshard seal {} resumes that", out.string(), out.string())};
}

Result<std::unique_ptr<format::FileLock>> lock_part(const Path& folder, Part part, format::FileSystem& files) {
  auto lock = files.lock(folder / "lock", format::LockKind::exclusive);
  if (lock || lock.error().kind != ErrorKind::conflict) return lock;
  return Error{ErrorKind::conflict,
               fmt::format("{}: another reshard is working on part {}", folder.string(), to_string(part))};
}

}  // namespace

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
  // Again under the lock: the parts may have been sealed in the meantime, or other work started.
  TRY_ASSIGN(const bool completed_meanwhile, is_complete(options.out, plan, repository, files));
  if (completed_meanwhile) return nothing_to_do;
  TRY(check_target(options.out, WorkKind::parts, files));
  TRY(check_not_joined(options.out, files));
  DurableFolders folders(files, options.out);
  TRY(folders.make(scope.work));
  TRY_ASSIGN(const auto lock, lock_part(scope.work, part, files));
  TRY_ASSIGN(const JournalLoaded done, load_journal(scope, identity, plan, files));
  TRY_ASSIGN(const auto journal, Journal::open(files, journal_path(scope), identity, done.valid_bytes));
  TRY(load_parts(outlook, repository, options.out, files));  // including this one: all parts must belong to one run
  PackedWriter writer(plan, scope, files, *journal, writer_limits(options));
  TRY(writer.resume(done.state));

  PartOutcome outcome{.shards = scope.shards.size()};
  for (const uint64_t shard : scope.shards)
    outcome.read_bytes += unread_bytes(plan, outlook.source, done.state, shard);
  const StreamInput input = stream_input(outlook, repository, scope, options, files);
  TRY(stream_shards(input, done.state, writer, progress, stop));
  progress.finished();
  TRY_ASSIGN(const std::vector<LoadedPart> parts, load_parts(outlook, repository, options.out, files));
  outcome.done_parts = static_cast<uint32_t>(std::ranges::count_if(parts, &LoadedPart::is_done));
  return outcome;
}

}  // namespace dspack::reshard
