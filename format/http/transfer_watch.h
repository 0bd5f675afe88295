// What the transfers from and to remote places wait for at the moment: since when no byte has come, and which
// repetition is under way or about to begin. The HTTP layer tells it, and whoever shows it asks at any time, by a clock
// of its own.
// Threads: thread-safe. Lifetime: transfers must end before their watch. Errors: none.
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
  /// The repetition of one transfer.
  struct Retry {
    unsigned number = 0;  // 0: its first attempt, or bytes have come since
    unsigned most = 0;
    Time begin{};  // of the attempt, when the pause before it is over
  };

 public:
  /// One transfer with all its attempts, from construction to destruction.
  class Transfer {
   public:
    /// `watch` nullptr: nobody looks.
    Transfer(TransferWatch* watch, Time now);
    ~Transfer();
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    /// Bytes have come, or have been sent: what fails after them is a first failure again.
    void moved(uint64_t bytes, Time now);
    /// An attempt has failed; the next one, so many of at most `most`, begins after a pause.
    void pauses(unsigned number, unsigned most, double seconds, Time now);

   private:
    TransferWatch* const watch_;
    std::list<Retry>::iterator retry_;
  };

  struct Wait {
    double silence_seconds = 0;  // since the last byte of any transfer, or since there is one under way
    unsigned retry = 0;          // of the transfer that has been repeated most; 0: none is being repeated
    unsigned retries = 0;        // how many there will be at most
    double pause_seconds = 0;    // until it begins; 0: it has begun
  };
  /// nullopt: no transfer is under way.
  [[nodiscard]] std::optional<Wait> wait(Time now) const;

  /// Bytes of all transfers so far, as they come: whether they will be of use is not known yet.
  [[nodiscard]] uint64_t moved_bytes() const { return bytes_; }

 private:
  mutable std::mutex mutex_;
  std::list<Retry> transfers_;  // guarded by mutex_, as is the next
  Time moved_{};                // the last byte came, or the first transfer of those under way began
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace dspack::format
