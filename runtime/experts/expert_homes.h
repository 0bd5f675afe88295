// Where several devices hold experts: which of them each expert belongs to, in whose memory alone it is kept. A token's
// experts lie spread over all devices, so that their memories are read, and their links used, at once.
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
  /// One device, to which all experts belong.
  ExpertHomes() = default;
  /// Experts of a layer go to the devices in turn, to each as often as it has slots of their layout (Bresenham's way);
  /// where there are none, to all alike. `layouts`: device_slot_layouts; `experts`: of a layer; `slots`: of each device
  /// in all, shared among the layouts as share_slots does.
  ExpertHomes(const std::vector<SlotLayout>& layouts, uint32_t experts, std::span<const uint64_t> slots);

  /// Of a checkpoint's experts. Errors: those of lay_out_experts.
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

/// Slots of several devices that have room for so many each: no more than there are experts in all, and as equal as
/// room allows, so that each reads as much as the others.
[[nodiscard]] std::vector<uint64_t> level_slots(std::span<const uint64_t> room, uint64_t experts);

}  // namespace dspack::runtime
