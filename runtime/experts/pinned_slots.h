// Slots in host memory that a device copies from. Pinning memory takes as long as reading an expert from a fast disk,
// and longer if done slot by slot, so a separate thread pins ahead, in pieces of many slots: the first slots are ready
// when the first experts are wanted, and later ones before they are needed. Threads: as SlotMemory. Lifetime: borrows
// the device; a piece lives as long as any of its slots. Errors: budget, when a slot is taken that could not be pinned.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "runtime/experts/slot_layouts.h"

namespace dspack::runtime {

class PinnedSlots final : public SlotMemory {
 public:
  /// Largest piece of more than one slot: 0.1 to 0.3 s of pinning, for which the end of a run may wait.
  static constexpr uint64_t kPieceBytes = 1ULL << 30;
  /// If this many pinned bytes of one slot size are untaken, no further piece is pinned: a short run does not pin all
  /// that a long one would.
  static constexpr uint64_t kAheadBytes = 2ULL << 30;

  explicit PinnedSlots(kernels::Device& device, uint64_t piece_bytes = kPieceBytes, uint64_t ahead_bytes = kAheadBytes)
      : device_(device), piece_bytes_(piece_bytes), ahead_bytes_(ahead_bytes) {}
  /// Waits for the piece that is being pinned.
  ~PinnedSlots() override = default;
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;

  void expect(std::span<const SlotsWanted> wanted) override;
  /// Blocks until the slot's piece is pinned.
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> take(uint64_t slot_bytes) override;

 private:
  /// A slot's place in a piece.
  struct SlotLocation {
    std::shared_ptr<kernels::Buffer> piece;
    uint64_t offset = 0;
  };
  class Slot;
  struct Size {
    uint64_t slot_bytes = 0;
    uint64_t left = 0;               // slots not pinned yet
    std::deque<SlotLocation> ready;  // pinned, not taken
    bool is_awaited = false;
    std::optional<Error> error;
  };
  void pin(const std::stop_token& stop);
  /// With the lock held: the size of which the next piece is to be pinned now; nullptr: none is.
  [[nodiscard]] Size* next();

  kernels::Device& device_;
  const uint64_t piece_bytes_, ahead_bytes_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Size> sizes_;  // guarded by mutex_
  std::jthread thread_;     // last: it uses all of the above
};

}  // namespace dspack::runtime
