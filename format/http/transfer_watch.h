// Shows why transfers from and to remote places wait: how long no byte has moved, and which retry is running or about
// to start. The HTTP layer updates it; a display may query it at any time, with its own clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>

namespace dspack::format {

class TransferWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

 private:
  /// Retry state of one transfer.
  struct Retry {
    unsigned number = 0;  // 0: the first attempt, or bytes have moved since
    unsigned most = 0;
    Time begin{};  // start of the attempt, after the pause before it
  };

 public:
  /// One transfer with all its attempts, from construction to destruction.
  class Transfer {
   public:
    /// `watch` nullptr: not watched.
    Transfer(TransferWatch* watch, Time now);
    ~Transfer();
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    /// Bytes were received or sent: the next failure counts as the first.
    void moved(uint64_t bytes, Time now);
    /// An attempt has failed; retry `number` of at most `most` starts in `seconds`.
    void pauses(unsigned number, unsigned most, double seconds, Time now);

   private:
    TransferWatch* const watch_;
    std::list<Retry>::iterator retry_;
  };

  struct Wait {
    double silence_seconds = 0;  // since the last byte of any transfer, or since the first one began
    unsigned retry = 0;          // retry number of the most repeated transfer; 0: none is being repeated
    unsigned retries = 0;        // the most there can be
    double pause_seconds = 0;    // until the retry starts; 0: it has started
  };
  /// nullopt: no transfer is under way.
  [[nodiscard]] std::optional<Wait> wait(Time now) const;

  /// Bytes moved by all transfers so far, whether they turn out to be useful or not.
  [[nodiscard]] uint64_t moved_bytes() const { return bytes_; }

 private:
  mutable std::mutex mutex_;
  std::list<Retry> transfers_;  // guarded by mutex_, as is the next member
  Time moved_{};                // time of the last byte, or start of the first running transfer
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace dspack::format
