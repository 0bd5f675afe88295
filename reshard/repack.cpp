#include "reshard/repack.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/base/checked.h"
#include "reshard/changed_config.h"
#include "reshard/output_folder.h"
#include "reshard/resolve_layers.h"
#include "reshard/seal.h"
#include "reshard/source_facts.h"
#include "reshard/stream.h"

namespace dspack::reshard {
namespace {

using format::Json;
using format::Path;

constexpr uint64_t kMaxJournalBytes = 512ULL << 20;
constexpr uint64_t kMaxManifestBytes = 512ULL << 20;
// Manifest, index, card and journal beside the planned files: a few hundred bytes a tensor.
constexpr uint64_t kBookkeepingBytesPerTensor = 512;

/// Plan and state of the source, for the first record of the journal: a resume must find the same.
Json run_identity(const Plan& plan, const format::Checkpoint& source, const format::Repository& repository) {
  Json versions = Json::array();
  for (const format::CheckpointFile& file : source.files())
    versions.push_back({file.path, file.version});
  Json identity = {{"journal", 1}, {"program", kVersion}, {"plan", plan.digest}, {"source", std::move(versions)}};
  if (const auto hub = repository.hub_origin()) {
    identity[kOriginKey] = {{"repository", hub->repository}, {"commit", hub->commit}};
    identity[kAskedKey] = hub->asked;
  }
  return identity;
}

/// Equal plans are made of equal headers; the bytes behind them, and the small files, are a commit's.
Result<void> check_origin(const Path& out, const format::Origin& origin, const format::Repository& repository) {
  const auto hub = repository.hub_origin();
  if (!hub || origin.kind != "hub" || origin.revision == hub->commit) return {};
  return Error{ErrorKind::conflict,
               fmt::format("{}: holds a packed repository of {} at commit {}, and {} is commit {} now; choose another "
                           "folder or remove it (what is there is complete: verify checks it)",
                           out.string(), origin.repository, origin.revision, hub->asked, hub->commit)};
}

/// Whether a finished repository of this very plan is there already.
Result<bool> is_complete(const Path& out, const Plan& plan, const format::Repository& repository,
                         format::FileSystem& files) {
  const auto text = read_text(files, out / format::kManifestPath, kMaxManifestBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return false;
  if (!text) return text.error();
  const auto manifest = format::parse_manifest(*text);
  if (!manifest) return manifest.error().in((out / format::kManifestPath).string());
  if (manifest->plan == plan.digest) {
    TRY(check_origin(out, manifest->origin, repository));
    return true;
  }
  return Error{
      ErrorKind::conflict,
      fmt::format("{}: holds a packed repository made from another source, with another recipe or by another version; "
                  "choose another folder or remove it",
                  out.string())};
}

/// What a run does that was killed between the manifest's rename and its end.
Result<RepackOutcome> finish_complete(const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const auto work, files.stat(work_folder(out)));
  if (work) {
    TRY(files.sync_folder(out));  // the work folder may go only when the manifest's name is durable
    TRY(files.remove_tree(work_folder(out)));
  }
  return RepackOutcome::already_complete;
}

/// Bytes that the run has still to write.
Result<uint64_t> bytes_to_write(const RepackOutlook& outlook, const JournalState& done, const Path& out,
                                format::FileSystem& files) {
  const auto sealed = [&done](uint32_t file) { return done.files.contains(file); };
  TRY_ASSIGN(const uint64_t missing, missing_bytes(outlook.plan, sealed, out, files));
  return missing + outlook.companion_bytes + outlook.source.tensors().size() * kBookkeepingBytesPerTensor;
}

Result<JournalLoaded> load_journal(const Path& path, const Json& identity, format::FileSystem& files) {
  auto text = read_text(files, path, kMaxJournalBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return JournalLoaded{};
  if (!text) return text.error();
  JournalLoad load = parse_journal(*text, identity);
  if (auto* loaded = std::get_if<JournalLoaded>(&load)) return std::move(*loaded);
  if (const auto* damaged = std::get_if<JournalDamaged>(&load)) {
    return Error{ErrorKind::corrupt, fmt::format("{}: damaged at byte {}: {}; remove the output folder and start again",
                                                 path.string(), damaged->offset, damaged->reason)};
  }
  if (const auto* foreign = std::get_if<JournalForeign>(&load)) {
    return Error{
        ErrorKind::conflict,
        fmt::format("{}: unfinished work that cannot be continued: {}; remove the output folder to start again",
                    path.string(), foreign->reason)};
  }
  return JournalLoaded{};
}

/// Records that no longer fit the plan would be used as indices: refuse them.
Result<void> check_records(const JournalState& state, const Plan& plan, const Path& journal) {
  bool fits =
      std::all_of(state.files.begin(), state.files.end(), [&](const auto& r) { return r.first < plan.files.size(); });
  for (const auto& [shard, record] : state.shards) {
    fits = fits && shard < plan.shards.size() && record.tensors.size() == plan.shards[shard].size();
  }
  if (fits) return {};
  return Error{ErrorKind::corrupt,
               journal.string() + ": records do not fit the plan; remove the output folder and start again"};
}

/// A list that does not name every shard, or another size, proves nothing: better told before than after the transfer.
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

/// The digests of tensors whose bytes passed as they are, stored or not.
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

/// Samples said that tensors are equal; now it is known.
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

/// Scales were read apart from their shard when a conversion needed them: they must be those that came with it, which
/// was compared with what is declared.
Result<void> check_scales(const Plan& plan, const format::Checkpoint& source, const std::vector<ShardDone>& yielded) {
  const auto streamed = streamed_digests(plan, yielded);
  for (size_t shard = 0; shard < yielded.size(); ++shard) {
    for (size_t i = 0; i < plan.shards[shard].size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      if (!copy.scales || yielded[shard].tensors[i].scales == streamed.at(*copy.scales)) continue;
      return Error{ErrorKind::corrupt,
                   fmt::format("tensor \"{}\" read differently twice; damaged on the way, or the source has changed: "
                               "remove the output folder and start again",
                               source.tensors()[*copy.scales].name)};
    }
  }
  return {};
}

/// What was catalogued must be what the place lists, where it lists with digests: else a run would begin on what it
/// cannot end with.
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

}  // namespace

Result<RepackOutlook> prepare_repack(format::Repository& repository, const RepackOptions& options,
                                     const std::stop_token& stop) {
  TRY(check_apart(repository, options.out));
  TRY_ASSIGN(format::Checkpoint source, format::Checkpoint::open(repository, options.jobs, stop));
  if (options.declared) TRY(check_list(*options.declared, source, repository));
  TRY(check_listing(source, repository, stop));
  TRY_ASSIGN(const Recipe recipe, resolve_layers(options.recipe, repository, stop));
  TRY_ASSIGN(const SourceFacts facts, find_facts(recipe, source, repository, options.jobs, stop));
  auto plan = make_plan(recipe, source, facts);
  if (!plan) return plan.error().in(repository.description());
  RepackOutlook outlook{std::move(source), std::move(plan).value(), {}, 0};
  TRY_ASSIGN(outlook.changed_config, changed_config(outlook.plan, repository, stop));
  TRY_ASSIGN(outlook.companions, find_companions(repository, options.jobs, stop));
  if (outlook.changed_config) TRY(set_aside_config(outlook.companions, repository));
  for (const Companion& companion : outlook.companions)
    outlook.companion_bytes += companion.size_bytes;
  return outlook;
}

Result<std::optional<format::HubOrigin>> begun_from(const Path& out, format::FileSystem& files) {
  const auto text = read_text(files, work_mark(out, WorkKind::repack), kMaxJournalBytes);
  if (text) return journal_origin(*text);
  if (text.error().kind == ErrorKind::not_found) return std::optional<format::HubOrigin>();
  return text.error();
}

Result<RepackOutcome> repack(const RepackOutlook& outlook, format::Repository& repository, const RepackOptions& options,
                             format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  const Plan& plan = outlook.plan;
  TRY_ASSIGN(const bool complete, is_complete(options.out, plan, repository, files));
  if (complete) return finish_complete(options.out, files);
  TRY(check_target(options.out, WorkKind::repack, files));
  const Path journal_path = work_mark(options.out, WorkKind::repack);
  const Json identity = run_identity(plan, outlook.source, repository);
  TRY_ASSIGN(const JournalLoaded before, load_journal(journal_path, identity, files));
  TRY_ASSIGN(const uint64_t need, bytes_to_write(outlook, before.state, options.out, files));
  TRY(check_disk(need, options.out, files));

  TRY_ASSIGN(const auto lock, lock_work_folder(options.out, files));
  // Again under the lock: another run may have gone on, or have finished, since.
  TRY_ASSIGN(const bool completed_meanwhile, is_complete(options.out, plan, repository, files));
  if (completed_meanwhile) return finish_complete(options.out, files);
  TRY_ASSIGN(const JournalLoaded done, load_journal(journal_path, identity, files));
  TRY(check_records(done.state, plan, journal_path));
  TRY_ASSIGN(const auto journal, Journal::open(files, journal_path, identity, done.valid_bytes));
  PackedWriter writer(plan, options.out, files, *journal);
  TRY(writer.resume(done.state));

  uint64_t todo_bytes = 0;
  for (uint64_t shard = 0; shard < plan.shards.size(); ++shard) {
    if (done.state.shards.contains(shard)) continue;
    const ShardRead& read = plan.reads[shard];
    todo_bytes += read.whole ? outlook.source.files()[shard].size_bytes : read.bytes();
  }
  if (!done.state.shards.empty())
    progress.note(
        fmt::format("resuming: {} of {} source shards are done", done.state.shards.size(), plan.shards.size()));
  progress.started("packing", todo_bytes, plan.shards.size());
  const StreamInput input{plan, outlook.source, repository, options.out, files, options.jobs, options.declared};
  TRY_ASSIGN(const std::vector<ShardDone> yielded, stream_shards(input, done.state, writer, progress, stop));
  TRY(check_scales(plan, outlook.source, yielded));
  TRY(check_aliases(plan, outlook.source, yielded));
  std::vector<std::optional<format::Digest>> shard_digests;
  shard_digests.reserve(yielded.size());
  for (const ShardDone& shard : yielded)
    shard_digests.push_back(shard.sha256);
  TRY(seal_repository({outlook, repository, options, shard_digests, writer.digests()}, writer.folders(), files, stop));
  progress.finished();
  return RepackOutcome::made;
}

}  // namespace dspack::reshard
