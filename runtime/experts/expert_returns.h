// Experts that a device is about to drop, on their way back to the host's memory where that has dropped them before:
// then the two memories hold as many different experts as one of both sizes would. Copies from the device run beside
// those to it; they have a queue of their own, one expert at a time, in pieces, and nobody waits for them.
// Threads: single-thread. Lifetime: borrows the store, and a slot while its expert is on its way. Errors: none; what a
// lost device has not brought is given up.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/experts/expert_layout.h"
#include "runtime/experts/expert_store.h"

namespace dspack::runtime {

struct DeviceSlot;

class ExpertReturns {
 public:
  /// Pieces of at most `piece_bytes`.
  ExpertReturns(kernels::Device& device, ExpertStore& host, uint64_t piece_bytes)
      : host_(host), piece_bytes_(piece_bytes), queue_(device.make_queue()) {}
  /// Waits for what is on its way.
  ~ExpertReturns() { (void)finish(); }
  ExpertReturns(const ExpertReturns&) = delete;
  ExpertReturns& operator=(const ExpertReturns&) = delete;

  /// Whether an expert is on its way.
  [[nodiscard]] bool is_busy() const { return present_.has_value(); }
  /// Sends a slot's expert on its way; the slot is pinned until it has arrived. False: the host has no slot for it, or
  /// has it. Precondition: none is on its way.
  [[nodiscard]] bool begin(DeviceSlot& slot, const ExpertLayout& layout);
  /// Enqueues pieces, kPiecesAhead of them at most. The slot whose expert has arrived; nullptr: none has.
  [[nodiscard]] DeviceSlot* advance();
  /// The same when all of it has arrived.
  [[nodiscard]] DeviceSlot* finish();

 private:
  struct Present {
    DeviceSlot* slot = nullptr;
    ExpertLease host;
    std::vector<ExpertPiece> pieces;
    size_t next = 0;  // of pieces
    std::deque<std::shared_ptr<kernels::Event>> under_way;
  };
  ExpertStore& host_;
  uint64_t piece_bytes_;
  std::unique_ptr<kernels::Queue> queue_;
  std::optional<Present> present_;
};

}  // namespace dspack::runtime
