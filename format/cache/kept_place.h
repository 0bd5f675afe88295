// The folders below the root of dsrun's caches, one per origin: lists them with their sizes and states, and removes
// one. Only remove_kept_place writes or removes anything.
// Threads: pure functions of the folders. Memory: the journal and the catalogue of one cache at a time. Errors: io;
// invalid (no name, or an ambiguous one), not_found, conflict (another process uses it).
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "format/cache/kept_weights.h"

namespace dspack::format {

enum class KeptState { complete, partial, in_use, unreadable };
/// "complete", "partial", "in use", "unreadable".
[[nodiscard]] std::string_view to_string(KeptState state);

/// A folder that is one of dsrun's caches, by its journal's first line.
struct KeptName {
  std::string folder;  // name below the root
  std::string origin;  // address, or hf://org/name@commit; empty: not in the journal yet

  /// The name shown to users.
  [[nodiscard]] const std::string& name() const { return origin.empty() ? folder : origin; }
};

struct KeptPlace : KeptName {
  KeptState state = KeptState::unreadable;
  std::string reason;  // why it is unreadable, or why its share is unknown
  uint64_t disk_bytes = 0;
  std::optional<KeptShare> share;
  int64_t used_ns = 0;  // modification time of its journal, since the epoch; opening a cache writes it
};

/// An entry below the root that is not a cache of dsrun.
struct StrangeEntry {
  std::string name;
  std::string reason;
};

struct KeptNames {
  std::vector<KeptName> ours;
  std::vector<StrangeEntry> strange;
};

/// Reads only the first line of each journal. A root that does not exist has no caches. Errors: also invalid (the root
/// is itself the cache of one origin).
[[nodiscard]] Result<KeptNames> list_kept_names(FileSystem& files, const Path& root, const std::stop_token& stop);

struct KeptPlaces {
  std::vector<KeptPlace> places;  // most recently used first
  std::vector<StrangeEntry> strange;
};

/// As list_kept_names, but also reads each cache's files, journal, and the catalogue of its model.
[[nodiscard]] Result<KeptPlaces> list_kept_places(FileSystem& files, const Path& root, const std::stop_token& stop);

/// The index of the cache with exactly this origin or folder, else of the only one whose origin (with or without its
/// scheme) or folder begins with `name`. Errors: invalid (if several match, the message lists some), not_found.
[[nodiscard]] Result<size_t> choose_kept_place(const std::vector<KeptName>& names, std::string_view name);

/// Disk space allocated to all files in a folder, not only the cache's own; links are not followed.
[[nodiscard]] Result<uint64_t> kept_disk_bytes(FileSystem& files, const Path& folder);

/// The state in a folder's journal. Errors: also corrupt.
[[nodiscard]] Result<CacheState> read_kept_state(FileSystem& files, const Path& folder);

/// Locks a cache folder against use by others.
[[nodiscard]] Result<std::unique_ptr<FileLock>> lock_kept_place(FileSystem& files, const Path& folder, LockKind kind);

/// Removes a cache folder, the journal last, so that an interrupted removal can be repeated.
[[nodiscard]] Result<void> remove_kept_place(FileSystem& files, const Path& folder);

}  // namespace dspack::format
