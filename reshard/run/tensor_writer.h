// Writes one tensor's bytes into a file: they are digested in the pieces in which they arrive, and written in large
// page-aligned ones while the next are digested. Digesting and writing then take the longer of their times, not their
// sum.
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

/// Size of one buffer: large compared with a disk's latency, small enough to have several per job.
inline constexpr uint64_t kStagingBytes = 512ULL << 10;

/// Collects bytes in one buffer while a thread writes the other buffers, in order. The thread starts when the first
/// buffer is full; if that fails, and for anything that fits into one buffer, the caller writes. Errors: those of the
/// writes, reported by the next call; pending writes are then dropped.
class BackgroundWriter {
 public:
  BackgroundWriter();
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  /// The buffer to fill: another one after each write().
  [[nodiscard]] std::span<std::byte> buffer() { return buffers_[current_]->bytes(); }
  /// Hands over a part of buffer(). `file` must live until finish() or abandon() has returned. `more`: the part is
  /// written while the next one is collected; otherwise everything is written on return.
  [[nodiscard]] Result<void> write(format::WriteFile& file, uint64_t offset, std::span<const std::byte> part,
                                   bool more);
  /// Blocks until everything handed over is written.
  [[nodiscard]] Result<void> finish();
  /// The same after another error: ignores the result of the writes.
  void abandon() { (void)finish(); }

 private:
  static constexpr size_t kBuffers = 4;  // some writes take several times as long as most
  struct PendingWrite {
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
  std::deque<PendingWrite> pieces_;  // the first is being written, the others wait; guarded by mutex_
  std::optional<Error> failed_;      // guarded by mutex_
  std::jthread thread_;              // last: joined before the other members are destroyed
};

/// Writes one tensor to its target.
class TensorWriter {
 public:
  /// `row_block_bytes`: size of the blocks that get their own digests; 0: none. `shard_hash`, unless null, also takes
  /// every byte: computing the digests of tensor, file and shard together is cheapest. If the target has no file, the
  /// bytes are only digested.
  TensorWriter(TensorTarget& target, uint64_t offset, uint64_t row_block_bytes, BackgroundWriter& writer,
               format::Sha256* shard_hash);
  ~TensorWriter() { writer_.abandon(); }  // the target's file is closed next
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  /// Resumes after the first `done` bytes, which an earlier run has written. Call before the first write.
  void resume(const TensorBegun& begun, uint64_t done);
  [[nodiscard]] Result<void> write(std::span<const std::byte> bytes);
  /// Writes what is collected, so that the file has all bytes up to here. Returns the tensor's digest states.
  [[nodiscard]] Result<TensorBegun> pause();
  /// Call after the last byte.
  [[nodiscard]] Result<TensorDigests> finish();

 private:
  Result<void> flush(bool more);

  TensorTarget& target_;
  BackgroundWriter& writer_;
  uint64_t begin_;   // start of the filled part of the writer's buffer; congruent to the file's offset modulo a page
  uint64_t end_;     // end of the filled part
  uint64_t offset_;  // offset in the file of the filled part's first byte
  format::TensorHash hash_;
  std::vector<format::Sha256*> others_;  // digests of shard and file that take the same bytes
};

}  // namespace dspack::reshard
