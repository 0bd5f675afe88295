// A file system in memory that can lose power. It knows of each file which bytes were synced, and of each folder which
// names; everything younger may be gone, whole or in part, after the loss.
// The rules are POSIX's, read pessimistically: syncing a file makes its bytes and size durable but not its name; only
// syncing the folder does that, for the changes up to then; a folder's own name needs its parent synced; changes
// of one folder become durable in their order; a rename is durable as a whole or not at all. A disk that
// answers a sync with a lie is outside the model.
// Killing a process needs no model: the same object simply goes on, with what was not synced still not synced.
// Threads: thread-safe. Lifetime: open files stay usable and belong to the world before the loss.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "format/file_system.h"

namespace dspack::test {

/// What a loss of power leaves of the things that were not synced.
enum class Survival {
  nothing,     // as if no unsynced operation had happened
  everything,  // as if all had just been written back
  prefix,      // of each file the first so many operations, the next one torn; of the names a random prefix
  pages,       // of each file a random choice of old and new 4 KiB pages, and an old or new size; names as above
};

class CrashFileSystem final : public format::FileSystem {
 public:
  CrashFileSystem();
  ~CrashFileSystem() override;

  /// The file system as it is found after a loss of power; equal seeds give equal losses. This one stays as it is.
  [[nodiscard]] std::unique_ptr<CrashFileSystem> after_power_loss(Survival survival, uint64_t seed) const;
  /// Every file below a folder as it reads now: relative path -> bytes. Nothing there: empty.
  [[nodiscard]] std::map<std::string, std::string> tree(const format::Path& folder) const;
  /// What free_bytes() starts from; pages that were written and are not all zeros count as used.
  void set_capacity(uint64_t bytes) { capacity_bytes_ = bytes; }

  Result<std::unique_ptr<format::ReadFile>> open_read(const format::Path& path) override;
  Result<std::unique_ptr<format::WriteFile>> open_write(const format::Path& path, format::OpenMode mode) override;
  Result<std::optional<format::FileInfo>> stat(const format::Path& path) override;
  Result<std::vector<std::string>> list(const format::Path& folder) override;
  Result<void> make_folders(const format::Path& folder) override;
  Result<void> rename(const format::Path& from, const format::Path& to) override;
  Result<void> remove_file(const format::Path& path) override;
  Result<void> remove_empty_folder(const format::Path& path) override;
  Result<void> remove_tree(const format::Path& path) override;
  Result<void> sync_folder(const format::Path& folder) override;
  Result<uint64_t> free_bytes(const format::Path& path) override;
  Result<std::unique_ptr<format::FileLock>> lock(const format::Path& path, format::LockKind kind) override;

 private:
  struct Change;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  class Reader;
  class Writer;
  class Lock;
  /// One folder's name now means another node, or none.
  struct Edit {
    NodePtr folder;
    std::string name;
    NodePtr node;
  };
  using NameChange = std::vector<Edit>;  // durable as a whole or not at all

  struct Place {
    NodePtr folder;
    std::string name;
    NodePtr node;  // null: nothing there
  };

  // All private methods are called with mutex_ held.
  [[nodiscard]] Result<Place> find(const format::Path& path) const;
  void change(NameChange edits);
  void remove_below(const Place& place);
  [[nodiscard]] static NodePtr survivor(const NodePtr& node, Survival survival, std::mt19937& random);
  [[nodiscard]] static std::string surviving_bytes(const Node& file, Survival survival, std::mt19937& random);
  [[nodiscard]] static uint64_t used_bytes(const Node& node);
  static void collect(const Node& folder, const std::string& prefix, std::map<std::string, std::string>& files);

  mutable std::mutex mutex_;
  NodePtr root_;
  std::list<NameChange> unsynced_names_;  // in order
  struct Held {
    format::LockKind kind;
    unsigned holders;
  };
  std::map<const Node*, Held> locked_;
  int64_t clock_ = 0;
  uint64_t capacity_bytes_ = uint64_t{1} << 40;
};

}  // namespace dspack::test
