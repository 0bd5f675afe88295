// The layout of an expert in a slot of memory: read as it is stored, extent by extent, and used in place. Every extent
// keeps the offset within a page that it has in its file, so that a disk can write directly into the slot.
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

/// The properties common to a model's experts.
struct ExpertShape {
  uint32_t hidden = 0;
  uint32_t expert_inner = 0;
  format::Quantization quantization;  // from config.json
  const TensorNames* names = &kTransformersNames;
  float limit = kernels::kNoLimit;  // kernels::ExpertMatrices
};
[[nodiscard]] ExpertShape expert_shape(const ModelConfig& config);

struct SlotPlan {
  /// Adjacent bytes of one file, and their place in the slot.
  struct PlacedExtent {
    format::Extent extent;
    uint64_t at = 0;  // offset in the slot; equal to extent.range.begin modulo the plan's grid
  };
  /// A tensor as stored, and its offset in the slot.
  struct Stored {
    const format::TensorEntry* tensor = nullptr;
    uint64_t at = 0;
  };
  /// Work on a plane before the weights can be used: kernels need it in another form than stored, its place in the file
  /// does not suit its elements, or its values must be checked.
  struct Step {
    format::StoredPlane plane;
    std::vector<uint64_t> from;  // the offset of each tensor of the plane
    uint64_t to = 0;             // from[0]: the plane stays in place
  };
  struct Matrix {
    kernels::WeightForm form;
    std::array<std::optional<uint64_t>, kernels::kPlanes> planes;  // offsets; nullopt: no such plane

    /// The weight whose planes lie at these offsets from `begin`.
    [[nodiscard]] Linear at(kernels::Slice begin) const;
    [[nodiscard]] bool operator==(const Matrix&) const = default;
  };

  std::vector<PlacedExtent> parts;  // by file and offset
  std::vector<Stored> tensors;      // all of the expert's, in Checkpoint::expert order
  std::vector<Step> steps;
  std::array<Matrix, 3> matrices;  // gate, up, down
  uint64_t stored_bytes = 0;       // sum over all parts
  uint64_t slot_bytes = 0;
  float limit = kernels::kNoLimit;  // see kernels::ExpertMatrices
};

/// `grid`: the modulus to which parts keep their offset: kPageBytes, or kMapGrid if files are mapped. Errors: not_found
/// for an expert that the checkpoint lacks.
[[nodiscard]] Result<SlotPlan> plan_slot(const format::Checkpoint& checkpoint, ExpertKey key, const ExpertShape& shape,
                                         uint64_t grid = kPageBytes);

/// Adds layer and number of the expert to an error of getting it, and the remedy if the expert is missing.
[[nodiscard]] Error explained(const Error& error, ExpertKey key);

/// Executes the plan's steps in a slot whose parts have arrived. Errors: those of StoredPlane::finish.
[[nodiscard]] Result<void> finish_slot(const format::Checkpoint& checkpoint, const SlotPlan& plan,
                                       std::span<std::byte> slot);

/// The weights of a finished slot.
[[nodiscard]] ExpertWeights weights_in(const SlotPlan& plan, kernels::Buffer& slot);

}  // namespace dspack::runtime
