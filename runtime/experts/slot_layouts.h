// The sizes of slots that a model's experts need, how many slots of each there are, and where their memory comes from.
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
  uint64_t slot_bytes = 0;  // of the largest expert
  uint64_t experts = 0;
  std::vector<LayerId> layers;
};

/// Layers whose largest experts differ in size by less than a quarter share slots: where experts lie in several pieces,
/// a page more or less is no reason for a pool of its own. Largest first. `layers`: those that count; empty: all.
[[nodiscard]] Result<std::vector<SlotLayout>> slot_layouts(const format::Checkpoint& checkpoint,
                                                           const ExpertShape& shape,
                                                           const std::set<LayerId>& layers = {});

/// Slots of each layout, at least `least` (of one or more) each and at most one for each expert; in all `slots` where
/// that allows it. Absent: one for each expert.
[[nodiscard]] std::vector<uint64_t> share_slots(const std::vector<SlotLayout>& layouts, std::optional<uint64_t> slots,
                                                uint64_t least = 1);

/// Slots of one size.
struct SlotsWanted {
  uint64_t slot_bytes = 0;
  uint64_t slots = 0;
};

/// What it gives may outlive it.
class SlotMemory {
 public:
  virtual ~SlotMemory() = default;
  /// No more than these will be taken. Called once, before the first is.
  virtual void expect(std::span<const SlotsWanted> /*wanted*/) {}
  /// The memory of one slot, on a page. Errors: budget.
  [[nodiscard]] virtual Result<std::unique_ptr<kernels::Buffer>> take(uint64_t slot_bytes) = 0;
};

}  // namespace dspack::runtime
