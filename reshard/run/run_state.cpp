#include "reshard/run/run_state.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dspack_version.h"
#include "format/json.h"
#include "reshard/run/journal.h"
#include "reshard/run/output_folder.h"

namespace dspack::reshard {
namespace {

using format::Json;
using format::Path;

/// Equal plans only guarantee equal headers; the bytes after them, and the small files, depend on the commit.
Result<void> check_origin(const Path& out, const format::Origin& origin, const format::Repository& repository) {
  const auto hub = repository.hub_origin();
  if (!hub || origin.kind != "hub" || origin.revision == hub->commit) return {};
  return Error{ErrorKind::conflict,
               fmt::format("{}: holds a packed repository of {} at commit {}, and {} is commit {} now; choose another "
                           "folder or remove it (it is complete: verify checks it)",
                           out.string(), origin.repository, origin.revision, hub->asked, hub->commit)};
}

/// The manifest lists what was sealed, not whether it still exists.
Result<void> check_all_there(const Path& out, const format::Manifest& manifest, format::FileSystem& files) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> named;
  size_t count = 0;
  const auto look_at = [&](const std::string& path, uint64_t size_bytes) -> Result<void> {
    TRY_ASSIGN(const auto info, files.stat(out / path));
    if (info && info->is_regular && info->size_bytes == size_bytes) return {};
    if (++count > kNamed) return {};
    named.push_back(info ? fmt::format("{} has {} bytes instead of {}", path, info->size_bytes, size_bytes)
                         : path + " is missing");
    return {};
  };
  for (const format::PackedFile& file : manifest.files) {
    const format::StoredFile stored = stored_file(file);
    TRY(look_at(stored.path, stored.size_bytes));
  }
  for (const format::CompanionFile& file : manifest.companions)
    TRY(look_at(file.path, file.size_bytes));
  if (count == 0) return {};
  const std::string more = count > kNamed ? fmt::format(", and {} more have changed", count - kNamed) : "";
  return Error{
      ErrorKind::corrupt,
      fmt::format("{}: was complete, and is damaged: {}{}; reshard repair {} fetches lost or damaged files again",
                  out.string(), fmt::join(named, ", "), more, out.string())};
}

/// The source's place, without secrets, so that `reshard seal` finds it from another working folder.
std::string place_of(const format::Repository& repository) {
  if (repository.kind() != format::RepositoryKind::local) return repository.description();
  std::error_code unknown;
  const Path absolute = std::filesystem::absolute(repository.description(), unknown);
  return unknown ? repository.description() : absolute.lexically_normal().string();
}

/// Parses "2-of-4", as part_scope names it.
std::optional<Part> part_of_folder(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  const size_t at = name.find(kOf);
  if (at == std::string::npos) return std::nullopt;
  const auto part = parse_part(name.substr(0, at) + "/" + name.substr(at + kOf.size()));
  return part ? std::optional(*part) : std::nullopt;
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
  const auto text = read_text(files, out / format::kManifestPath, format::kManifestDocument.bytes);
  if (!text && text.error().kind == ErrorKind::not_found) return false;
  if (!text) return text.error();
  const auto manifest = format::parse_manifest(*text);
  if (!manifest) return manifest.error().in((out / format::kManifestPath).string());
  if (manifest->plan == plan.digest) {
    TRY(check_origin(out, manifest->origin, repository));
    TRY(check_all_there(out, *manifest, files));
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
    TRY(files.sync_folder(out));  // the manifest's name must be durable before the work folder is removed
    TRY(remove_work_folder(out, files));
  }
  return RepackOutcome::already_complete;
}

Result<JournalLoaded> load_journal(const RunScope& scope, const Json& identity, const Plan& plan,
                                   format::FileSystem& files) {
  const Path path = journal_path(scope);
  auto text = read_text(files, path, format::kMaxJournalBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return JournalLoaded{};
  if (!text) return text.error();
  JournalLoad load = parse_journal(*text, identity);
  if (auto* loaded = std::get_if<JournalLoaded>(&load)) {
    if (fits_plan(loaded->state, scope, plan)) return std::move(*loaded);
    return Error{ErrorKind::corrupt,
                 path.string() + ": records do not fit the plan; remove the output folder and start again"};
  }
  if (const auto* damaged = std::get_if<JournalDamaged>(&load)) {
    return Error{
        ErrorKind::corrupt,
        fmt::format("{}: damaged at byte {}: {}; reshard repair {} repeats the work of the broken record and resumes",
                    path.string(), damaged->offset, damaged->reason, scope.out.string())};
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
    const auto text = read_text(files, path, format::kMaxJournalBytes);
    if (!text && text.error().kind == ErrorKind::not_found) continue;
    if (!text) return text.error();
    if (auto head = journal_head(*text)) return head;
  }
  return std::optional<JournalHead>();
}

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
    // A folder without a journal was only just created, perhaps by a run that was then killed.
    if (loaded.valid_bytes != 0) parts.push_back({*part, std::move(loaded.state), scope.shards.size()});
  }
  std::ranges::sort(parts, {}, [](const LoadedPart& loaded) { return loaded.part.number; });
  for (const LoadedPart& loaded : parts) {
    if (loaded.part.count == parts.front().part.count) continue;
    return Error{ErrorKind::conflict,
                 fmt::format("{}: holds parts {} and {}; all must be of one count: remove {} to split the work again",
                             folder.string(), to_string(parts.front().part), to_string(loaded.part), out.string())};
  }
  return parts;
}

}  // namespace dspack::reshard
