// The slot sizes that a model's experts need, the number of slots of each size, and the source of their memory.
// Threads: thread-safe (pure functions); memory is taken by one thread at a time. Errors: those of plan_slot; budget.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/experts/slot_plan.h"

namespace dspack::runtime {

/// Layers whose experts share slots.
struct SlotLayout {
  uint64_t slot_bytes = 0;  // size of the largest expert
  uint64_t experts = 0;
  std::vector<LayerId> layers;
};

/// Groups layers whose largest experts differ in size by less than a quarter: an expert stored in several pieces may
/// need a page more or less, which does not justify a separate pool. Largest first. `layers`: those to consider; empty:
/// all.
[[nodiscard]] Result<std::vector<SlotLayout>> slot_layouts(const format::Checkpoint& checkpoint,
                                                           const ExpertShape& shape,
                                                           const std::set<LayerId>& layers = {});

/// Divides `slots` among the layouts in proportion to their experts: to each at least `least`, and at most one slot per
/// expert; the sum is `slots` if these limits allow. Absent: one slot per expert.
[[nodiscard]] std::vector<uint64_t> share_slots(const std::vector<SlotLayout>& layouts, std::optional<uint64_t> slots,
                                                uint64_t least = 1);

/// Slots of one size.
struct SlotsWanted {
  uint64_t slot_bytes = 0;
  uint64_t slots = 0;
};

/// A source of slot memory. The memory may outlive it.
class SlotMemory {
 public:
  virtual ~SlotMemory() = default;
  /// No more than these slots will be taken. Called once, before the first `take`.
  virtual void expect(std::span<const SlotsWanted> /*wanted*/) {}
  /// The memory of one slot, page-aligned. Errors: budget.
  [[nodiscard]] virtual Result<std::unique_ptr<kernels::Buffer>> take(uint64_t slot_bytes) = 0;
};

}  // namespace dspack::runtime
