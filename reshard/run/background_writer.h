// Collects bytes in one buffer while a thread writes those of others, in order: digesting and writing then take the
// longer of their times, not their sum. The thread is made when the first buffer is full; where none can be made, and
// for what fits into one buffer, the caller writes.
// Threads: one caller. Memory: kBuffers of kStagingBytes. Errors: those of the writes, from the next call after they
// failed; nothing more is written then.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "format/base/page_buffer.h"
#include "format/file_system.h"

namespace dspack::reshard {

/// Of one buffer: large against a disk's latency, small enough to hold some for each job.
inline constexpr uint64_t kStagingBytes = 512ULL << 10;

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

}  // namespace dspack::reshard
