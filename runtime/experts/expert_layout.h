// Where an expert's matrices lie in device memory: without the other bytes of their files, each aligned for wide loads,
// and otherwise as they lie in a slot of the host's memory (slot_plan.h), so that one copy brings an expert that is
// stored in one piece.
// Threads: pure functions; uploading as the queue. Lifetime: a layout is a plain value. Errors: those of plan_slot;
// not_found for an expert that the checkpoint lacks, where all are needed; unsupported (experts of one layer that are
// stored differently).
#pragma once

#include <array>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "runtime/experts/slot_layouts.h"
#include "runtime/experts/slot_plan.h"

namespace dspack::runtime {

struct ExpertLayout {
  std::array<SlotPlan::Matrix, 3> matrices;  // gate, up, down, counted from the expert's first byte
  uint64_t expert_bytes = 0;

  [[nodiscard]] bool operator==(const ExpertLayout&) const = default;
};

/// Which experts a device is to hold.
struct DeviceExperts {
  ExpertShape shape;
  uint32_t experts = 0;      // of each layer
  std::set<LayerId> layers;  // whose experts a run may want
};

/// Some: an expert that is missing matters when the router picks it.
enum class ExpertPresence { all, some };

/// The layout of one expert alone.
[[nodiscard]] ExpertLayout layout_of(const SlotPlan& plan);

/// The layout of each layer's experts: that of the most experts of the same forms, where they lie differently in the
/// host's slots. Looks at every expert, so that one that is missing or stored otherwise is told
/// of before tens of gigabytes are read. A layer without any usable expert is left out.
[[nodiscard]] Result<std::map<LayerId, ExpertLayout>> lay_out_experts(const format::Checkpoint& checkpoint,
                                                                      const DeviceExperts& wanted,
                                                                      ExpertPresence presence);

/// Layers whose experts share slots in device memory: those of one layout. In order of their first layer.
[[nodiscard]] std::vector<SlotLayout> device_slot_layouts(const std::map<LayerId, ExpertLayout>& layouts,
                                                          uint32_t experts);

/// The weights of an expert that begins at `begin`.
[[nodiscard]] ExpertWeights weights_at(const ExpertLayout& layout, kernels::Slice begin);

/// Of an expert's bytes, those of one copy.
struct ExpertPiece {
  kernels::Slice device;
  std::span<std::byte> host;
};
/// The copies of an expert's matrices, in either direction, none of more than `most_bytes`: planes that are as far
/// apart at both places come together.
[[nodiscard]] std::vector<ExpertPiece> pieces_of(const ExpertLayout& layout, const ExpertWeights& host,
                                                 const ExpertWeights& device, uint64_t most_bytes);

/// Enqueues the copies of an expert's matrices. `from` lies in the host's memory, which is borrowed as for
/// Queue::upload.
void upload_expert(kernels::Queue& queue, const ExpertLayout& layout, const ExpertWeights& from,
                   const ExpertWeights& to);

}  // namespace dspack::runtime
