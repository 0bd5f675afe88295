// The folders below the root of dsrun's caches, one for each place: which are ours, of what they are, what they take,
// and how one is removed. Nothing is written or removed but by remove_kept_place.
// Threads: pure functions of the folders. Memory: the journal and the catalogue of one place at a time.
// Errors: io; invalid (no name, or one of several), not_found, conflict (another process uses it).
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

/// A folder that is a cache of ours, by its journal's first line.
struct KeptName {
  std::string folder;  // its name below the root
  std::string origin;  // address, or hf://org/name@commit; empty: the journal does not say yet

  /// What a user calls it by.
  [[nodiscard]] const std::string& name() const { return origin.empty() ? folder : origin; }
};

struct KeptPlace : KeptName {
  KeptState state = KeptState::unreadable;
  std::string reason;  // where it is unreadable, or its share is not known
  uint64_t disk_bytes = 0;
  std::optional<KeptShare> share;
  int64_t used_ns = 0;  // since the epoch: a process that opens a cache writes its journal
};

/// What lies below the root and is no cache of ours.
struct StrangeEntry {
  std::string name;
  std::string reason;
};

struct KeptNames {
  std::vector<KeptName> ours;
  std::vector<StrangeEntry> strange;
};

/// Reads a line of each journal and nothing else. A root that does not exist has no places. Errors: also invalid (the
/// root is itself the cache of a place).
[[nodiscard]] Result<KeptNames> list_kept_names(FileSystem& files, const Path& root, const std::stop_token& stop);

struct KeptPlaces {
  std::vector<KeptPlace> places;  // last used first
  std::vector<StrangeEntry> strange;
};

/// The same, each looked at: its files, its journal, and the catalogue of its model.
[[nodiscard]] Result<KeptPlaces> list_kept_places(FileSystem& files, const Path& root, const std::stop_token& stop);

/// The index of the one with exactly this name or folder, else of the only one whose name (with or without what is
/// before "://") or folder begins so. Errors: invalid, not_found; of several they are named.
[[nodiscard]] Result<size_t> choose_kept_place(const std::vector<KeptName>& names, std::string_view name);

/// Blocks on the disk of all files of a folder, whoever has put them there; links are not followed.
[[nodiscard]] Result<uint64_t> kept_disk_bytes(FileSystem& files, const Path& folder);

/// What the journal of a folder says. Errors: also corrupt.
[[nodiscard]] Result<CacheState> read_kept_state(FileSystem& files, const Path& folder);

/// A lock on a cache folder, so that it is not used meanwhile.
[[nodiscard]] Result<std::unique_ptr<FileLock>> lock_kept_place(FileSystem& files, const Path& folder, LockKind kind);

/// Removes the folder of a place, the journal last: a removal that is cut short can be repeated.
[[nodiscard]] Result<void> remove_kept_place(FileSystem& files, const Path& folder);

}  // namespace dspack::format
