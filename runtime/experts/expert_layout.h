// The layout of an expert's matrices in device memory: without the other bytes of their files, each aligned for wide
// loads, otherwise as in a host slot (slot_plan.h), so that one copy brings an expert that is stored in one piece.
// Threads: pure functions; uploading as the queue. Lifetime: a layout is a plain value. Errors: those of plan_slot;
// not_found for an expert that the checkpoint lacks, if all are needed; unsupported (experts of one layer that are
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
  std::array<SlotPlan::Matrix, 3> matrices;  // gate, up, down; offsets from the expert's first byte
  uint64_t expert_bytes = 0;
  float limit = kernels::kNoLimit;  // kernels::ExpertMatrices

  [[nodiscard]] bool operator==(const ExpertLayout&) const = default;
};

/// The experts that a device is to hold.
struct DeviceExperts {
  ExpertShape shape;
  uint32_t experts = 0;      // per layer
  std::set<LayerId> layers;  // layers whose experts a run may want
};

/// some: a missing expert is an error only when the router picks it.
enum class ExpertPresence { all, some };

/// The layout of one expert alone.
[[nodiscard]] ExpertLayout layout_of(const SlotPlan& plan);

/// The layout of each layer's experts: the most frequent one, if experts of the same forms lie differently in host
/// slots. Checks every expert, so that a missing or differently stored one is reported before tens of gigabytes are
/// read. Omits layers without any usable expert.
[[nodiscard]] Result<std::map<LayerId, ExpertLayout>> lay_out_experts(const format::Checkpoint& checkpoint,
                                                                      const DeviceExperts& wanted,
                                                                      ExpertPresence presence);

/// Groups layers of one layout, whose experts share slots in device memory. In order of their first layer.
[[nodiscard]] std::vector<SlotLayout> device_slot_layouts(const std::map<LayerId, ExpertLayout>& layouts,
                                                          uint32_t experts);

/// The weights of an expert that begins at `begin`.
[[nodiscard]] ExpertWeights weights_at(const ExpertLayout& layout, kernels::Slice begin);

/// The part of an expert's bytes that one copy transfers.
struct ExpertPiece {
  kernels::Slice device;
  std::span<std::byte> host;
};
/// Splits the transfer of an expert's matrices, in either direction, into copies of at most `most_bytes` each. Planes
/// with the same spacing in both memories share a copy.
[[nodiscard]] std::vector<ExpertPiece> pieces_of(const ExpertLayout& layout, const ExpertWeights& host,
                                                 const ExpertWeights& device, uint64_t most_bytes);

/// Enqueues the copies of an expert's matrices. `from` is in host memory, borrowed as for Queue::upload.
void upload_expert(kernels::Queue& queue, const ExpertLayout& layout, const ExpertWeights& from,
                   const ExpertWeights& to);

}  // namespace dspack::runtime
