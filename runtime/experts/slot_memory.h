// Where the memory of slots comes from.
// Threads: `take` by one thread at a time. Lifetime: memory may outlive what gave it. Errors: budget.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "format/base/result.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// Slots of one size.
struct SlotsWanted {
  uint64_t slot_bytes = 0;
  uint64_t slots = 0;
};

class SlotMemory {
 public:
  virtual ~SlotMemory() = default;
  /// No more than these will be taken. Called once, before the first is.
  virtual void expect(std::span<const SlotsWanted> /*wanted*/) {}
  /// The memory of one slot, on a page.
  [[nodiscard]] virtual Result<std::unique_ptr<kernels::Buffer>> take(uint64_t slot_bytes) = 0;
};

}  // namespace dspack::runtime
