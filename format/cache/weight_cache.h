// The weights in a cache folder: whole experts, other tensors one by one, and tensors that are read by rows in blocks.
// They are stored in the files that `reshard --by expert` makes, at the same offsets, whatever the origin's grouping.
// The journal records data only after its bytes are durable.
// Threads: thread-safe. Lifetime: borrows folder and catalogue. Errors: budget (no space on the disk, or only what must
// stay free), io, corrupt (a kept file is gone or truncated, a second fetch differs from the first); each names the
// file.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format/cache/cache_blocks.h"
#include "format/cache/cache_folder.h"
#include "format/checkpoint.h"
#include "format/open_files.h"
#include "format/packing/planned_file.h"

namespace dspack::format {

struct CacheLimit {
  uint64_t bytes = 0;            // limit on everything kept; 0: no limit
  uint64_t set_aside_bytes = 0;  // part of `bytes` reserved for tensors claimed whole: experts and blocks do not use it
  uint64_t stay_free_bytes = 0;  // free space to leave on the disk: disk_room.h
};

class WeightCache {
 public:
  /// Removes what an earlier process left half-written, and experts above the limit.
  [[nodiscard]] static Result<std::unique_ptr<WeightCache>> open(CacheFolder& folder, const Checkpoint& catalogue,
                                                                 CacheLimit limit);
  ~WeightCache();

  [[nodiscard]] bool has_expert(ExpertKey expert) const;
  /// Whether a tensor outside experts is kept whole.
  [[nodiscard]] bool has_tensor(uint32_t tensor) const;
  [[nodiscard]] bool has_block(uint32_t tensor, uint64_t block) const;

  /// The digest recorded at an earlier fetch, which the bytes must match; nullopt: none is recorded.
  [[nodiscard]] std::optional<Digest> recorded(uint32_t tensor) const;
  [[nodiscard]] std::optional<Digest> recorded_block(uint32_t tensor, uint64_t block) const;

  /// Reads bytes of a tensor; `offset` is relative to its first byte. Precondition: they are kept.
  [[nodiscard]] Result<void> read(uint32_t tensor, uint64_t offset, std::span<std::byte> into);

  /// Bytes of a block and their digest.
  struct Block {
    std::span<const std::byte> bytes;
    Digest digest{};
  };

  /// Writes bytes of a tensor outside experts at their place, without claiming them.
  [[nodiscard]] Result<void> write(uint32_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  /// Claims tensors that were written whole, with their digests.
  [[nodiscard]] Result<void> claim(std::span<const std::pair<uint32_t, Digest>> tensors);
  /// Writes and claims blocks of a tensor; experts are evicted for them as in keep_expert. False: there is no room.
  [[nodiscard]] Result<bool> keep_blocks(uint32_t tensor, const std::map<uint64_t, Block>& blocks);

  /// Writes and claims a whole expert. `tensors`: bytes in Checkpoint::expert order. Evicts the least recently used
  /// experts as far as the limit requires. False: there is no room even so.
  [[nodiscard]] Result<bool> keep_expert(ExpertKey expert, std::span<const std::span<const std::byte>> tensors);
  /// Records the digests of an expert that is not kept, if none are known; `recorded` returns them for the rest of this
  /// run.
  void remember(ExpertKey expert, std::span<const std::span<const std::byte>> tensors);
  /// Marks an expert as used now; the least recently used is evicted first.
  void note_use(ExpertKey expert);

  // Removes data that no longer matches its digest.
  [[nodiscard]] Result<void> drop_expert(ExpertKey expert);
  [[nodiscard]] Result<void> drop_tensor(uint32_t tensor);

  [[nodiscard]] uint64_t size_bytes() const;
  [[nodiscard]] uint64_t limit_bytes() const { return limit_.bytes; }
  /// All files that the cache may hold, sorted by path.
  [[nodiscard]] const std::vector<PlannedFile>& planned() const { return planned_; }
  /// Whether a planned file is complete: at its final path, or all its blocks in its part file.
  [[nodiscard]] bool is_whole(uint32_t file) const;
  /// The current path of a file.
  [[nodiscard]] Path path_of(uint32_t file) const;
  /// The bytes that a planned file still lacks.
  [[nodiscard]] uint64_t missing_bytes(uint32_t file) const;

 private:
  struct TensorLocation {
    uint32_t file = 0;
    uint32_t slot = 0;
  };
  /// State of one planned file.
  struct File {
    std::optional<KeptFile> whole;       // set if it is an expert's file and kept
    std::vector<Digest> first_fetch;     // digests of an expert that is not kept: removed, or `remember`ed
    std::map<uint32_t, Digest> tensors;  // by slot; not for experts
    std::map<uint32_t, std::map<uint64_t, Digest>> blocks;
    bool is_moved = false;  // not for experts: it is whole and has its final name
    uint64_t last_use = 0;
  };

  /// Bytes being written, counted against the limit until they are claimed or given up.
  class Room {
   public:
    /// Requires the cache's mutex.
    Room(WeightCache& cache, uint64_t bytes) : cache_(cache), bytes_(bytes) { cache.reserved_bytes_ += bytes; }
    ~Room() {
      if (bytes_ == 0) return;
      const std::lock_guard lock(cache_.mutex_);
      leave();
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    /// Requires the cache's mutex: call together with claiming the bytes, so that they are counted once.
    void leave() {
      cache_.reserved_bytes_ -= std::exchange(bytes_, 0);
      cache_.room_left_.notify_all();
    }

   private:
    WeightCache& cache_;
    uint64_t bytes_;
  };

  WeightCache(CacheFolder& folder, const Checkpoint& catalogue, CacheLimit limit);
  Result<void> take_over();
  Result<void> take_over_expert(uint32_t file, const KeptFile& kept);
  Result<void> take_over_parts(uint32_t file, const KeptParts& parts);
  Result<void> remove_strays();
  Result<std::unique_ptr<Room>> make_room(uint64_t bytes);
  /// Fails with budget if writing `bytes` more would not leave the required free space on the disk.
  [[nodiscard]] Result<void> leave_room(uint64_t bytes) const;
  [[nodiscard]] uint64_t taken_bytes() const;  // requires the mutex
  Result<void> remove_expert(uint32_t file);
  Result<void> move_if_whole(uint32_t file);
  [[nodiscard]] Result<void> compare_with_first(uint32_t file, const std::vector<Digest>& tensors) const;
  Result<KeptFile> write_expert(uint32_t file, ExpertKey expert, std::span<const std::span<const std::byte>> tensors);
  Result<std::shared_ptr<WriteFile>> writer(uint32_t file);
  void close(uint32_t file);
  [[nodiscard]] bool has_all_tensors(uint32_t file) const;
  [[nodiscard]] Path final_path(uint32_t file) const { return folder_.root() / planned_[file].path; }
  [[nodiscard]] uint64_t blocks_of(uint32_t tensor) const;
  [[nodiscard]] uint64_t block_bytes(uint32_t tensor, uint64_t block) const;

  CacheFolder& folder_;
  const Checkpoint& catalogue_;
  CacheLimit limit_;
  std::vector<PlannedFile> planned_;
  std::vector<TensorLocation> places_;     // by tensor
  std::map<ExpertKey, uint32_t> file_of_;  // an expert's file
  mutable std::mutex mutex_;               // guards the following members
  std::vector<File> files_;
  uint64_t whole_bytes_ = 0;     // tensors claimed whole
  uint64_t other_bytes_ = 0;     // experts and blocks
  uint64_t reserved_bytes_ = 0;  // sum over all Rooms
  std::condition_variable room_left_;
  uint64_t clock_ = 0;
  std::vector<std::string> used_;  // by this run, for the journal
  std::unordered_map<uint32_t, std::shared_ptr<WriteFile>> writers_;
  OpenFiles readers_;  // has its own lock
};

}  // namespace dspack::format
