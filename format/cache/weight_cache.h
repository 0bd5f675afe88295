// The weights that a cache folder keeps: whole experts, other tensors one by one, tensors that are read by rows in
// blocks. They lie in the files that `reshard --by expert` makes, at the same places, whatever the origin's grouping.
// Data is recorded only after its bytes are durable.
// Threads: thread-safe. Lifetime: borrows folder and catalogue. Errors: budget (no space on the disk, or what is left
// stays free), io, corrupt (a file that is kept is gone or shorter, a second fetch differs from the first); each names
// the file.
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
  uint64_t bytes = 0;            // of all that is kept; 0: no limit
  uint64_t set_aside_bytes = 0;  // of these, for tensors that are claimed whole: neither experts nor blocks take them
  uint64_t stay_free_bytes = 0;  // of the disk: disk_room.h
};

class WeightCache {
 public:
  /// Takes away what an earlier process left half-written, and experts that are above the limit.
  [[nodiscard]] static Result<std::unique_ptr<WeightCache>> open(CacheFolder& folder, const Checkpoint& catalogue,
                                                                 CacheLimit limit);
  ~WeightCache();

  [[nodiscard]] bool has_expert(ExpertKey expert) const;
  /// A tensor of no expert, whole.
  [[nodiscard]] bool has_tensor(uint32_t tensor) const;
  [[nodiscard]] bool has_block(uint32_t tensor, uint64_t block) const;

  /// What the bytes must be by the journal: the digest of an earlier fetch; nullopt where none is recorded.
  [[nodiscard]] std::optional<Digest> recorded(uint32_t tensor) const;
  [[nodiscard]] std::optional<Digest> recorded_block(uint32_t tensor, uint64_t block) const;

  /// Bytes of a tensor, from `offset` relative to its first. Precondition: they are kept.
  [[nodiscard]] Result<void> read(uint32_t tensor, uint64_t offset, std::span<std::byte> into);

  /// A block's bytes and their digest.
  struct Block {
    std::span<const std::byte> bytes;
    Digest digest{};
  };

  /// Puts bytes of a tensor of no expert where they belong, without claiming them.
  [[nodiscard]] Result<void> write(uint32_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  /// Claims tensors that were written whole, with the digests of their bytes.
  [[nodiscard]] Result<void> claim(std::span<const std::pair<uint32_t, Digest>> tensors);
  /// Writes and claims blocks of a tensor; experts make room for them as for an expert. False: there is no room.
  [[nodiscard]] Result<bool> keep_blocks(uint32_t tensor, const std::map<uint64_t, Block>& blocks);

  /// Writes and claims a whole expert. `tensors`: bytes in Checkpoint::expert order. Others that were not used for
  /// longest make room, as far as the limit asks. False: there is no room even so.
  [[nodiscard]] Result<bool> keep_expert(ExpertKey expert, std::span<const std::span<const std::byte>> tensors);
  /// Takes the digests of an expert that is not kept, the first time: `recorded` then has them for the rest of this
  /// run.
  void remember(ExpertKey expert, std::span<const std::span<const std::byte>> tensors);
  /// For what is removed first.
  void note_use(ExpertKey expert);

  // What does not read as it was: it is taken away.
  [[nodiscard]] Result<void> drop_expert(ExpertKey expert);
  [[nodiscard]] Result<void> drop_tensor(uint32_t tensor);

  [[nodiscard]] uint64_t size_bytes() const;
  [[nodiscard]] uint64_t limit_bytes() const { return limit_.bytes; }
  /// All files that there can be, by path.
  [[nodiscard]] const std::vector<PlannedFile>& planned() const { return planned_; }
  /// Whether a planned file is here whole: at its final path, or all blocks of it in its part.
  [[nodiscard]] bool is_whole(uint32_t file) const;
  /// Where the bytes of a file lie now.
  [[nodiscard]] Path path_of(uint32_t file) const;
  /// The bytes that a planned file still misses.
  [[nodiscard]] uint64_t missing_bytes(uint32_t file) const;

 private:
  struct Place {
    uint32_t file = 0;
    uint32_t slot = 0;
  };
  /// Of one planned file.
  struct File {
    std::optional<KeptFile> whole;       // an expert's
    std::vector<Digest> first_fetch;     // of an expert that was removed
    std::map<uint32_t, Digest> tensors;  // by slot; of other files
    std::map<uint32_t, std::map<uint64_t, Digest>> blocks;
    bool is_moved = false;  // of other files: it is whole and has its final name
    uint64_t last_use = 0;
  };

  /// Bytes that somebody is writing, counted until they are claimed or given up.
  class Room {
   public:
    /// Under the cache's mutex.
    Room(WeightCache& cache, uint64_t bytes) : cache_(cache), bytes_(bytes) { cache.reserved_bytes_ += bytes; }
    ~Room() {
      if (bytes_ == 0) return;
      const std::lock_guard lock(cache_.mutex_);
      leave();
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    /// Under the cache's mutex: together with the claim of the bytes, so that they are counted once.
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
  /// Whether so many more bytes leave the disk the room that it is to have.
  [[nodiscard]] Result<void> leave_room(uint64_t bytes) const;
  [[nodiscard]] uint64_t taken_bytes() const;  // under the mutex
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
  std::vector<Place> places_;              // by tensor
  std::map<ExpertKey, uint32_t> file_of_;  // an expert's file
  mutable std::mutex mutex_;               // guards what follows
  std::vector<File> files_;
  uint64_t whole_bytes_ = 0;     // of tensors that are claimed whole
  uint64_t other_bytes_ = 0;     // of experts and blocks
  uint64_t reserved_bytes_ = 0;  // of rooms
  std::condition_variable room_left_;
  uint64_t clock_ = 0;
  std::vector<std::string> used_;  // in this run, for the journal
  std::unordered_map<uint32_t, std::shared_ptr<WriteFile>> writers_;
  OpenFiles readers_;  // guards itself
};

}  // namespace dspack::format
