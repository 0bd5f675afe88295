// One tensor's bytes on their way into a file: digested in the pieces in which they come, written in large page-aligned
// ones while the next is digested. Digesting and writing then take the longer of their times, not their sum.
// Threads: one caller. Lifetime: a TensorWriter borrows target and writer. Memory: kBuffers of kStagingBytes. Errors:
// io, budget.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "format/base/page_buffer.h"
#include "format/file_system.h"
#include "reshard/run/packed_writer.h"

namespace dspack::reshard {

/// Of one buffer: large against a disk's latency, small enough to hold some for each job.
inline constexpr uint64_t kStagingBytes = 512ULL << 10;

/// Collects bytes in one buffer while a thread writes those of others, in order. The thread is made when the first
/// buffer is full; where none can be made, and for what fits into one buffer, the caller writes. Errors: those of the
/// writes, from the next call after they failed; nothing more is written then.
class BackgroundWriter {
 public:
  BackgroundWriter();
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  /// The buffer to be filled: another one after each write().
  [[nodiscard]] std::span<std::byte> buffer() { return buffers_[current_]->bytes(); }
  /// Hands over a part of buffer(). The file must stay until finish() or abandon() has returned. `more`: another part
  /// is collected meanwhile; without it all is written afterwards.
  [[nodiscard]] Result<void> write(format::WriteFile& file, uint64_t offset, std::span<const std::byte> part,
                                   bool more);
  /// Waits until all that was handed over is written.
  [[nodiscard]] Result<void> finish();
  /// The same after another error: what became of the writes matters no longer.
  void abandon() { (void)finish(); }

 private:
  static constexpr size_t kBuffers = 4;  // single writes take up to some times as long as most
  struct Piece {
    format::WriteFile* file = nullptr;
    uint64_t offset = 0;
    std::span<const std::byte> bytes;
  };
  bool has_thread();
  void write_pieces(const std::stop_token& stop);
  Result<void> wait(std::unique_lock<std::mutex>& lock, size_t most_under_way);

  std::array<std::optional<PageBuffer>, kBuffers> buffers_;
  size_t current_ = 0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Piece> pieces_;     // being written (the first), or to be; guarded by mutex_
  std::optional<Error> failed_;  // guarded by mutex_
  std::jthread thread_;          // last: joined before the rest goes
};

/// One tensor, into its target.
class TensorWriter {
 public:
  /// `row_block_bytes`: 0, or the size of the blocks that get digests of their own. `shard_hash` takes every byte too,
  /// if it is given: the digests of tensor, file and shard are cheapest together. A target without a file: the bytes
  /// are digested and written nowhere.
  TensorWriter(TensorTarget& target, uint64_t offset, uint64_t row_block_bytes, BackgroundWriter& writer,
               format::Sha256* shard_hash);
  ~TensorWriter() { writer_.abandon(); }  // the target's file goes next
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  /// Goes on after the first `done` bytes, which an earlier run has written. Before the first write.
  void resume(const TensorBegun& begun, uint64_t done);
  [[nodiscard]] Result<void> write(std::span<const std::byte> bytes);
  /// Writes what is collected: the file then has all bytes up to here. Where the tensor is.
  [[nodiscard]] Result<TensorBegun> pause();
  /// After the last byte.
  [[nodiscard]] Result<TensorDigests> finish();

 private:
  Result<void> flush(bool more);

  TensorTarget& target_;
  BackgroundWriter& writer_;
  uint64_t begin_;   // of the filled part of the writer's buffer; congruent to the file's offset modulo a page
  uint64_t end_;     // of the filled part
  uint64_t offset_;  // in the file, of the filled part's first byte
  format::TensorHash hash_;
  std::vector<format::Sha256*> others_;  // of shard and file, where they take the same bytes
};

}  // namespace dspack::reshard
