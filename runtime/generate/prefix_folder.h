// The blocks of a prefix cache on disk: a folder with a file for each (kv_file.h). A block's name is a digest of the
// model's identity, all tokens before it and its own, so files alone define which block follows which. A thread of the
// folder writes them in order; each appears whole or not at all. One process at a time uses a folder.
// Threads: one caller; the log is also called by the folder's thread. Lifetime: borrows the file system; the destructor
// blocks until all is written. Errors: open: those of files, conflict (in use); read: those of kv_file.h.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/generate/kv_file.h"

namespace dspack::runtime {

/// The name of the block of these tokens after `parent`.
[[nodiscard]] format::Digest block_id(const format::Digest& parent, std::span<const uint32_t> tokens);

class PrefixFolder {
 public:
  using Log = std::function<void(const Error& error)>;
  /// `most_bytes`: limit on all files; unset: keeps free the disk space that every cache leaves (disk_room.h).
  [[nodiscard]] static Result<std::unique_ptr<PrefixFolder>> open(format::FileSystem& files, format::Path folder,
                                                                  KvIdentity identity,
                                                                  std::optional<uint64_t> most_bytes, Log log);
  ~PrefixFolder();

  struct Stored {
    format::Digest id;
    format::Digest parent;
    uint32_t first = 0;
    std::vector<uint32_t> tokens;
    bool goes_on = true;  // KvExtent
    int64_t modified_ns = 0;
  };
  /// The blocks found when the folder was opened, least recently used first: those named by remember_use, then the
  /// others by time of writing. Without files of other models, and files with damaged headers.
  [[nodiscard]] std::vector<Stored> take_stored() { return std::move(stored_); }

  /// Whether there is room for a file of such a block. Removes files of other models to make room, oldest first.
  [[nodiscard]] bool has_room(const KvExtent& extent);
  /// Queues the block. Blocks while more than kMaxUnwrittenBytes are queued.
  void write(const format::Digest& id, const format::Digest& parent, std::shared_ptr<const KvBlock> block);
  void remove(const format::Digest& id, const KvExtent& extent);
  [[nodiscard]] Result<std::shared_ptr<const KvBlock>> read(const format::Digest& id);
  /// Saves names of blocks for the next process, least recently used first.
  void remember_use(std::span<const format::Digest> ids);

  /// Bytes of all files, including those of other models.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

  /// Queued blocks stay in memory: V3's block of 64 positions has 9 MB.
  static constexpr uint64_t kMaxUnwrittenBytes = 512ULL << 20U;

 private:
  struct Job {
    format::Digest id;
    format::Digest parent;
    std::shared_ptr<const KvBlock> block;  // null: remove the file
  };
  struct Foreign {
    std::string name;
    uint64_t bytes = 0;
    int64_t modified_ns = 0;
  };

  PrefixFolder(format::FileSystem& files, format::Path folder, KvIdentity identity, std::optional<uint64_t> most_bytes,
               Log log)
      : files_(files),
        folder_(std::move(folder)),
        identity_(std::move(identity)),
        most_bytes_(most_bytes),
        log_(std::move(log)) {}
  [[nodiscard]] Result<void> scan();
  void sort_by_use();
  [[nodiscard]] Result<Stored> read_stored(const std::string& name) const;
  [[nodiscard]] format::Path path_of(const format::Digest& id) const;
  [[nodiscard]] bool fits(uint64_t more_bytes) const;
  [[nodiscard]] Result<void> run(const Job& job);
  void work();

  format::FileSystem& files_;
  format::Path folder_;
  KvIdentity identity_;
  std::optional<uint64_t> most_bytes_;
  Log log_;
  std::unique_ptr<format::FileLock> lock_;
  uint64_t stay_free_bytes_ = 0;
  std::vector<Stored> stored_;
  std::vector<Foreign> foreign_;  // newest first
  uint64_t bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;          // the first is being run; guarded by mutex_
  uint64_t unwritten_bytes_ = 0;  // rows of queued blocks; guarded by mutex_
  bool ends_ = false;             // guarded by mutex_
  std::thread writer_;            // last: it uses all other members
};

}  // namespace dspack::runtime
