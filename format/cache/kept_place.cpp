#include "format/cache/kept_place.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/foreign_text.h"
#include "format/cache/cache_folder.h"
#include "format/json.h"
#include "format/manifest.h"

namespace dspack::format {
namespace {

constexpr unsigned kMaxLevels = 64;  // nested folders; a cache has only a few levels

Result<uint64_t> disk_bytes(FileSystem& files, const Path& folder, unsigned levels) {
  if (levels == 0) return Error{ErrorKind::unsupported, folder.string() + ": lies too deep"};
  uint64_t bytes = 0;
  TRY_ASSIGN(const auto names, files.list(folder));
  for (const std::string& name : names) {
    TRY_ASSIGN(const auto info, files.stat(folder / name));
    if (!info || info->is_link) continue;
    if (!info->is_directory) {
      bytes += info->allocated_bytes;
      continue;
    }
    TRY_ASSIGN(const uint64_t below, disk_bytes(files, folder / name, levels - 1));
    bytes += below;
  }
  return bytes;
}

/// The beginning of a journal, long enough for the record of its origin.
Result<std::string> journal_head(FileSystem& files, const Path& journal) {
  constexpr uint64_t kHeadBytes = 64 << 10;
  TRY_ASSIGN(const auto file, files.open_read(journal));
  std::string head(std::min(kHeadBytes, file->size_bytes()), '\0');
  TRY(file->read(0, std::as_writable_bytes(std::span(head))));
  return head;
}

/// Why an entry is not a cache folder of dsrun; nullopt: it is one.
Result<std::optional<std::string>> strange_reason(FileSystem& files, const Path& folder) {
  const auto is = [](std::string reason) { return std::optional(std::move(reason)); };
  TRY_ASSIGN(const auto info, files.stat(folder));
  if (!info || info->is_link) return is("a symbolic link");
  if (!info->is_directory) return is("no folder");
  TRY_ASSIGN(const auto work, files.stat(cache_work_folder(folder)));
  if (!work) {
    TRY_ASSIGN(const auto manifest, files.stat(folder / kManifestPath));
    return manifest ? is("a packed repository (reshard seal makes one of a cache)") : is("no cache of dsrun");
  }
  if (work->is_link || !work->is_directory) return is("its .dspack-cache is no folder");
  TRY_ASSIGN(const auto journal, files.stat(cache_journal_path(folder)));
  TRY_ASSIGN(const auto lock, files.stat(cache_lock_path(folder)));
  if (!journal && !lock) return is("no cache of dsrun: its .dspack-cache has no journal");
  if ((journal && (journal->is_link || !journal->is_regular)) || (lock && (lock->is_link || !lock->is_regular)))
    return is("its journal or lock is no ordinary file");
  std::string head;
  if (journal) {
    TRY_ASSIGN(head, journal_head(files, cache_journal_path(folder)));
  }
  if (cache_origin(head)) return std::optional<std::string>();
  if (!head.empty()) return is("its journal is not one of this program");
  // The process that created it was killed or has only just started: nothing else may exist yet.
  TRY_ASSIGN(const auto names, files.list(folder));
  if (names.size() > 1) return is("its .dspack-cache says nothing of the other files in it");
  return std::optional<std::string>();
}

/// The origin in the journal of a cache folder; empty: not recorded yet.
Result<std::string> origin_in(FileSystem& files, const Path& folder) {
  TRY_ASSIGN(const auto journal, files.stat(cache_journal_path(folder)));
  if (!journal) return std::string();
  TRY_ASSIGN(const std::string head, journal_head(files, cache_journal_path(folder)));
  return cache_origin(head).value_or("");
}

Result<KeptPlace> look_at(FileSystem& files, const Path& root, KeptName name, const std::stop_token& stop) {
  const Path folder = root / name.folder;
  KeptPlace place;
  static_cast<KeptName&>(place) = std::move(name);
  TRY_ASSIGN(place.disk_bytes, kept_disk_bytes(files, folder));
  TRY_ASSIGN(const auto journal, files.stat(cache_journal_path(folder)));
  if (journal) place.used_ns = journal->modified_ns;
  const auto state = read_kept_state(files, folder);
  if (state) {
    const auto share = kept_share(files, folder, *state, stop);
    if (!share && share.error().kind == ErrorKind::cancelled) return share.error();
    if (share)
      place.share = *share;
    else
      place.reason = share.error().message;
    place.state = share && share->present_bytes == share->total_bytes ? KeptState::complete : KeptState::partial;
  } else {
    place.reason = state.error().message;
  }
  TRY_ASSIGN(const auto lock_file, files.stat(cache_lock_path(folder)));
  if (!lock_file) return place;  // listing must not create one
  const auto lock = lock_kept_place(files, folder, LockKind::shared);
  if (!lock && lock.error().kind == ErrorKind::conflict) place.state = KeptState::in_use;
  return place;
}

std::string_view without_scheme(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? origin : origin.substr(scheme + 3);
}

}  // namespace

std::string_view to_string(KeptState state) {
  switch (state) {
    case KeptState::complete: return "complete";
    case KeptState::partial: return "partial";
    case KeptState::in_use: return "in use";
    case KeptState::unreadable: return "unreadable";
  }
  DSPACK_CHECK(false, "a state of a cache");
}

Result<uint64_t> kept_disk_bytes(FileSystem& files, const Path& folder) {
  return disk_bytes(files, folder, kMaxLevels);
}

Result<KeptNames> list_kept_names(FileSystem& files, const Path& root, const std::stop_token& stop) {
  KeptNames kept;
  TRY_ASSIGN(const auto info, files.stat(root));
  if (!info) return kept;
  if (!info->is_directory) return invalid(root.string() + ": is no folder; --cache names the folder of all caches");
  TRY_ASSIGN(const auto itself, files.stat(cache_work_folder(root)));
  if (itself) {
    return invalid(fmt::format("{}: is the cache of one place; name the folder that holds it: --cache {}",
                               root.string(), (root / "..").lexically_normal().string()));
  }
  TRY_ASSIGN(const auto names, files.list(root));
  for (const std::string& name : names) {
    if (stop.stop_requested()) return stopped();
    if (name == "hub-commits") continue;  // commits that names on the Hub stood for, one per line
    const auto reason = strange_reason(files, root / name);
    if (!reason || *reason) {
      kept.strange.push_back({name, reason ? **reason : reason.error().message});
      continue;
    }
    auto origin = origin_in(files, root / name);
    if (origin)
      kept.ours.push_back({name, *std::move(origin)});
    else
      kept.strange.push_back({name, origin.error().message});
  }
  return kept;
}

Result<KeptPlaces> list_kept_places(FileSystem& files, const Path& root, const std::stop_token& stop) {
  TRY_ASSIGN(KeptNames names, list_kept_names(files, root, stop));
  KeptPlaces kept{.places = {}, .strange = std::move(names.strange)};
  for (KeptName& name : names.ours) {
    if (stop.stop_requested()) return stopped();
    auto place = look_at(files, root, name, stop);
    if (!place && place.error().kind == ErrorKind::cancelled) return place.error();
    if (place)
      kept.places.push_back(std::move(*place));
    else
      kept.strange.push_back({name.folder, place.error().message});
  }
  std::ranges::stable_sort(kept.places, std::ranges::greater(), &KeptPlace::used_ns);
  return kept;
}

Result<size_t> choose_kept_place(const std::vector<KeptName>& names, std::string_view name) {
  constexpr size_t kNamed = 3;
  if (name.empty()) return invalid("no name; dsrun cache lists them");
  std::vector<size_t> near;
  for (size_t i = 0; i < names.size(); ++i) {
    const KeptName& place = names[i];
    if (place.origin == name || place.folder == name) return i;
    if (place.origin.starts_with(name) || without_scheme(place.origin).starts_with(name) ||
        place.folder.starts_with(name))
      near.push_back(i);
  }
  if (near.size() == 1) return near.front();
  if (near.empty())
    return Error{ErrorKind::not_found, fmt::format("{} is not kept here; dsrun cache lists what is", quote(name))};
  std::string listed;
  for (size_t i = 0; i < std::min(near.size(), kNamed); ++i)
    listed += (listed.empty() ? "" : ", ") + brief(names[near[i]].name());
  return invalid(fmt::format("{} begins {} names: {}{}; write more of it", quote(name), near.size(), listed,
                             near.size() > kNamed ? ", ..." : ""));
}

Result<CacheState> read_kept_state(FileSystem& files, const Path& folder) {
  const Path path = cache_journal_path(folder);
  const auto text = read_text(files, path, kMaxJournalBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return CacheState{};
  if (!text) return text.error();
  CacheLoad load = parse_cache_journal(*text, "");
  if (const auto* damaged = std::get_if<CacheDamaged>(&load)) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: damaged at byte {}: {}", path.string(), damaged->offset, damaged->reason)};
  }
  return std::move(std::get<CacheLoaded>(load).state);  // any origin was allowed, so this is not CacheForeign
}

Result<std::unique_ptr<FileLock>> lock_kept_place(FileSystem& files, const Path& folder, LockKind kind) {
  auto lock = files.lock(cache_lock_path(folder), kind);
  if (!lock && lock.error().kind == ErrorKind::conflict) {
    return Error{ErrorKind::conflict,
                 folder.string() + ": another process uses this cache; try again when it has ended"};
  }
  return lock;
}

Result<void> remove_kept_place(FileSystem& files, const Path& folder) {
  TRY_ASSIGN(const auto strange, strange_reason(files, folder));
  if (strange) return Error{ErrorKind::conflict, fmt::format("{}: left alone: {}", folder.string(), *strange)};
  TRY_ASSIGN(const auto lock, lock_kept_place(files, folder, LockKind::exclusive));
  TRY_ASSIGN(const auto names, files.list(folder));
  for (const std::string& name : names) {
    if (folder / name != cache_work_folder(folder)) TRY(files.remove_tree(folder / name));
  }
  TRY_ASSIGN(const auto work, files.list(cache_work_folder(folder)));
  for (const std::string& name : work) {
    const Path path = cache_work_folder(folder) / name;
    if (path != cache_journal_path(folder) && path != cache_lock_path(folder)) TRY(files.remove_tree(path));
  }
  return files.remove_tree(folder);
}

}  // namespace dspack::format
