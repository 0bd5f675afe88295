// With several devices, which of them each expert belongs to; that device alone keeps it. A token's experts are spread
// over all devices, so that their memories are read, and their links used, in parallel.
// Threads: thread-safe (immutable). Lifetime: a plain value. Errors: see find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/experts/expert_layout.h"

namespace dspack::runtime {

class ExpertHomes {
 public:
  /// A single device, to which all experts belong.
  ExpertHomes() = default;
  /// Deals each layer's experts to the devices in turn, in proportion to their slots of that layout (Bresenham's
  /// algorithm), or equally if there are none. `layouts`: device_slot_layouts; `experts`: per layer; `slots`: per
  /// device in total, divided among the layouts by share_slots.
  ExpertHomes(const std::vector<SlotLayout>& layouts, uint32_t experts, std::span<const uint64_t> slots);

  /// For a checkpoint's experts. Errors: those of lay_out_experts.
  [[nodiscard]] static Result<ExpertHomes> find(const format::Checkpoint& checkpoint, const DeviceExperts& experts,
                                                std::span<const uint64_t> slots);

  /// The device's number.
  [[nodiscard]] size_t of(LayerId layer, ExpertId expert) const;
  /// Experts that belong to a device. Precondition: there are several devices.
  [[nodiscard]] uint64_t count(size_t device) const { return counts_[device]; }

 private:
  std::map<LayerId, std::vector<uint8_t>> by_layer_;
  std::vector<uint64_t> counts_;  // by device
};

/// The number of slots for each of several devices, given the number that fits each: no more in total than there are
/// experts, and as equal as room allows, so that each device reads the same amount.
[[nodiscard]] std::vector<uint64_t> level_slots(std::span<const uint64_t> room, uint64_t experts);

}  // namespace dspack::runtime
