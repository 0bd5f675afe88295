// Copies experts back to host memory before a device evicts them, if the host has evicted them meanwhile: then the two
// memories hold as many different experts as one memory of both sizes would. The copies run beside those to the device:
// on a separate queue, one expert at a time, in pieces, and nothing waits for them.
// Threads: single-thread. Lifetime: borrows the store, and a slot while its expert is being copied. Errors: none; an
// expert that a lost device has not copied is given up.
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
  /// Copies in pieces of at most `piece_bytes`.
  ExpertReturns(kernels::Device& device, ExpertStore& host, uint64_t piece_bytes)
      : host_(host), piece_bytes_(piece_bytes), queue_(device.make_queue()) {}
  /// Waits for the copy under way.
  ~ExpertReturns() { (void)finish(); }
  ExpertReturns(const ExpertReturns&) = delete;
  ExpertReturns& operator=(const ExpertReturns&) = delete;

  /// Whether an expert is being copied.
  [[nodiscard]] bool is_busy() const { return present_.has_value(); }
  /// Starts copying a slot's expert; the slot is pinned until the copy has ended. False: the host has no slot for the
  /// expert, or has the expert. Precondition: !is_busy().
  [[nodiscard]] bool begin(DeviceSlot& slot, const ExpertLayout& layout);
  /// Enqueues pieces, at most kPiecesAhead of them ahead. Returns the slot whose copy has ended; nullptr: none has.
  [[nodiscard]] DeviceSlot* advance();
  /// Waits for the copy to end and returns its slot; nullptr: none was under way.
  [[nodiscard]] DeviceSlot* finish();

 private:
  struct Present {
    DeviceSlot* slot = nullptr;
    ExpertLease host;
    std::vector<ExpertPiece> pieces;
    size_t next = 0;  // index of the next piece to enqueue
    std::deque<std::shared_ptr<kernels::Event>> under_way;
  };
  ExpertStore& host_;
  uint64_t piece_bytes_;
  std::unique_ptr<kernels::Queue> queue_;
  std::optional<Present> present_;
};

}  // namespace dspack::runtime
