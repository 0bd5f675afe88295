// Where the bytes of an expert lie in a slot of memory: read as they are stored, extent by extent, and used in place.
// Every extent begins at the place in a page that it has in its file, so that a disk can write into the slot directly.
// Threads: thread-safe (pure functions). Lifetime: a plan borrows the catalogue. Errors: those of finding weights
// (linear.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/base/page_buffer.h"
#include "format/checkpoint.h"
#include "format/weights/weight_format.h"
#include "runtime/config/config.h"
#include "runtime/experts/expert_store.h"

namespace dspack::runtime {

/// What the experts of a model have in common.
struct ExpertShape {
  uint32_t hidden = 0;
  uint32_t expert_inner = 0;
  format::Quantization quantization;  // as config.json says it
  const TensorNames* names = &kTransformersNames;
  float limit = kernels::kNoLimit;  // kernels::ExpertMatrices
};
[[nodiscard]] ExpertShape expert_shape(const ModelConfig& config);

struct SlotPlan {
  /// Adjacent bytes of one file and where they go.
  struct Part {
    format::Extent extent;
    uint64_t at = 0;  // in the slot; equal to extent.range.begin modulo the plan's grid
  };
  /// A tensor as it is stored.
  struct Stored {
    const format::TensorEntry* tensor = nullptr;
    uint64_t at = 0;
  };
  /// What has to be done before the weights can be used: a plane that kernels want otherwise than it is stored, whose
  /// place in the file does not suit its elements, or whose values have to be looked at.
  struct Step {
    format::StoredPlane plane;
    std::vector<uint64_t> from;  // of each tensor of the plane
    uint64_t to = 0;             // from[0]: it stays where it is
  };
  struct Matrix {
    kernels::WeightForm form;
    std::array<std::optional<uint64_t>, kernels::kPlanes> planes;  // where they are; nullopt: there is none

    /// The weight whose planes lie so far from `begin`.
    [[nodiscard]] Linear at(kernels::Slice begin) const;
    [[nodiscard]] bool operator==(const Matrix&) const = default;
  };

  std::vector<Part> parts;      // by file and offset
  std::vector<Stored> tensors;  // all of the expert's, in Checkpoint::expert order
  std::vector<Step> steps;
  std::array<Matrix, 3> matrices;  // gate, up, down
  uint64_t stored_bytes = 0;       // of all parts
  uint64_t slot_bytes = 0;
  float limit = kernels::kNoLimit;  // of the gated values
};

/// `grid`: what parts keep their place modulo: kPageBytes, or kMapGrid where files are mapped. Errors: not_found for an
/// expert that the checkpoint lacks.
[[nodiscard]] Result<SlotPlan> plan_slot(const format::Checkpoint& checkpoint, ExpertKey key, const ExpertShape& shape,
                                         uint64_t grid = kPageBytes);

/// An error of getting an expert, with its layer and number and, where it is missing, the remedy.
[[nodiscard]] Error explained(const Error& error, ExpertKey key);

/// Does the plan's steps in a slot whose parts have arrived. Errors: those of StoredPlane::finish.
[[nodiscard]] Result<void> finish_slot(const format::Checkpoint& checkpoint, const SlotPlan& plan,
                                       std::span<std::byte> slot);

/// The weights of a finished slot.
[[nodiscard]] ExpertWeights weights_in(const SlotPlan& plan, kernels::Buffer& slot);

}  // namespace dspack::runtime
