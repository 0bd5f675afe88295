// The sizes of slots that a model's experts need, and how many slots of each there are.
// Threads: thread-safe (pure functions). Errors: those of plan_slot.
#pragma once

#include <optional>
#include <set>
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

}  // namespace dspack::runtime
