#include "reshard/run_state.h"

#include <algorithm>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/source/http_headers.h"
#include "reshard/output_folder.h"

namespace dspack::reshard {
namespace {

using format::Json;
using format::Path;

constexpr uint64_t kMaxJournalBytes = 512ULL << 20;
constexpr uint64_t kMaxManifestBytes = 512ULL << 20;

/// Equal plans are made of equal headers; the bytes behind them, and the small files, are a commit's.
Result<void> check_origin(const Path& out, const format::Origin& origin, const format::Repository& repository) {
  const auto hub = repository.hub_origin();
  if (!hub || origin.kind != "hub" || origin.revision == hub->commit) return {};
  return Error{ErrorKind::conflict,
               fmt::format("{}: holds a packed repository of {} at commit {}, and {} is commit {} now; choose another "
                           "folder or remove it (what is there is complete: verify checks it)",
                           out.string(), origin.repository, origin.revision, hub->asked, hub->commit)};
}

/// The tensors under way are all copies of the one that comes next, and `at` lies in it.
bool fits_shard(const ShardBegun& record, const std::vector<Copy>& copies) {
  const size_t next = record.tensors.size();
  if (next > copies.size() || (next == copies.size() && !record.begun.empty())) return false;
  if (record.begun.empty()) return true;
  const Copy& copy = copies[next];
  const auto same = std::ranges::count(copies, copy.tensor, &Copy::tensor);
  return static_cast<size_t>(same) == record.begun.size() && copy.source.begin <= record.at &&
         record.at <= copy.source.end;
}

/// Records that do not fit the plan would be used as indices: refuse them.
Result<void> check_records(const JournalState& state, const RunScope& scope, const Plan& plan, const Path& journal) {
  bool fits =
      std::all_of(state.files.begin(), state.files.end(), [&](const auto& r) { return r.first < plan.files.size(); });
  for (const auto& [shard, record] : state.shards) {
    fits =
        fits && std::ranges::binary_search(scope.shards, shard) && record.tensors.size() == plan.shards[shard].size();
  }
  for (const auto& [shard, record] : state.begun)
    fits = fits && std::ranges::binary_search(scope.shards, shard) && fits_shard(record, plan.shards[shard]);
  for (const FileBegun& record : state.file_hashes)
    fits = fits && record.file < plan.files.size();
  if (fits) return {};
  return Error{ErrorKind::corrupt,
               journal.string() + ": records do not fit the plan; remove the output folder and start again"};
}

/// Where the source is, so that `reshard seal` finds it from another folder; without secrets.
std::string place_of(const format::Repository& repository) {
  if (repository.kind() != format::RepositoryKind::local) return format::without_password(repository.description());
  std::error_code unknown;
  const Path absolute = std::filesystem::absolute(repository.description(), unknown);
  return unknown ? repository.description() : absolute.lexically_normal().string();
}

}  // namespace

Json run_identity(const RepackOutlook& outlook, const format::Repository& repository, std::optional<Part> part) {
  Json versions = Json::array();
  for (const format::CheckpointFile& file : outlook.source.files())
    versions.push_back({file.path, file.version});
  Json identity = {{"journal", 2},
                   {"program", kVersion},
                   {"plan", outlook.plan.digest},
                   {"source", std::move(versions)},
                   {kRecipeKey, recipe_json(outlook.plan.recipe)}};
  if (const auto hub = repository.hub_origin()) {
    identity[kOriginKey] = {{"repository", hub->repository}, {"commit", hub->commit}};
    identity[kAskedKey] = hub->asked;
  } else {
    identity[kPlaceKey] = place_of(repository);
  }
  if (part) identity[kPartKey] = to_string(*part);
  return identity;
}

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

Result<RepackOutcome> finish_complete(const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const auto work, files.stat(work_folder(out)));
  if (work) {
    TRY(files.sync_folder(out));  // the work folder may go only when the manifest's name is durable
    TRY(files.remove_tree(work_folder(out)));
  }
  return RepackOutcome::already_complete;
}

Result<JournalLoaded> load_journal(const RunScope& scope, const Json& identity, const Plan& plan,
                                   format::FileSystem& files) {
  const Path path = journal_path(scope);
  auto text = read_text(files, path, kMaxJournalBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return JournalLoaded{};
  if (!text) return text.error();
  JournalLoad load = parse_journal(*text, identity);
  if (auto* loaded = std::get_if<JournalLoaded>(&load)) {
    TRY(check_records(loaded->state, scope, plan, path));
    return std::move(*loaded);
  }
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

Result<std::optional<JournalHead>> unfinished_work(const Path& out, format::FileSystem& files) {
  std::vector<Path> journals = {work_mark(out, WorkKind::repack)};
  const Path parts = work_mark(out, WorkKind::parts);
  TRY_ASSIGN(const auto there, files.stat(parts));
  if (there && there->is_directory) {
    TRY_ASSIGN(const std::vector<std::string> names, files.list(parts));
    for (const std::string& name : names)
      journals.push_back(parts / name / "journal");
  }
  for (const Path& path : journals) {
    const auto text = read_text(files, path, kMaxJournalBytes);
    if (!text && text.error().kind == ErrorKind::not_found) continue;
    if (!text) return text.error();
    if (auto head = journal_head(*text)) return head;
  }
  return std::optional<JournalHead>();
}

}  // namespace dspack::reshard
