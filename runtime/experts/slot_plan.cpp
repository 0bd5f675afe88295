#include "runtime/experts/slot_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

namespace {

// Vector loads are fastest from a cache line's start.
constexpr uint64_t kLine = 64;

class SlotPlanner {
 public:
  SlotPlanner(const format::Checkpoint& checkpoint, ExpertKey key, uint64_t grid)
      : checkpoint_(checkpoint), key_(key), grid_(grid) {}

  void place_parts() {
    for (const format::Extent& extent : checkpoint_.expert_extents(key_)) {
      const uint64_t at = round_up(end_, grid_) + extent.range.begin % grid_;
      plan_.parts.push_back({.extent = extent, .at = at});
      plan_.stored_bytes += extent.range.size();
      end_ = at + extent.range.size();
    }
    end_ = round_up(end_, grid_);  // derived planes get separate pages: the parts' may be mapped from a file
    for (const uint32_t index : checkpoint_.expert(key_)) {
      const format::TensorEntry& tensor = checkpoint_.tensors()[index];
      plan_.tensors.push_back({.tensor = &tensor, .at = place_of(tensor)});
    }
  }

  Result<void> add_matrix(size_t index, uint32_t out, uint32_t in, const ExpertShape& shape) {
    const std::string name = fmt::format("{}.{}.weight", shape.names->expert(key_), shape.names->projections[index]);
    TRY_ASSIGN(const format::StoredMatrix stored, format::find_matrix(checkpoint_, name, out, in, shape.quantization));
    SlotPlan::Matrix& matrix = plan_.matrices[index];
    matrix.form = stored.form;
    for (size_t i = 0; i < stored.planes.size(); ++i) {
      const format::StoredPlane& plane = stored.planes[i];
      if (!plane.empty()) matrix.planes[i] = place(plane);
    }
    return {};
  }

  void set_limit(float limit) { plan_.limit = limit; }

  SlotPlan finish() {
    plan_.slot_bytes = round_up(end_, kPageBytes);
    return std::move(plan_);
  }

 private:
  [[nodiscard]] uint64_t place_of(const format::TensorEntry& tensor) const {
    const auto holds = [&](const SlotPlan::PlacedExtent& part) {
      return part.extent.file == tensor.file && part.extent.range.begin <= tensor.range.begin &&
             tensor.range.end <= part.extent.range.end;
    };
    const auto part = std::ranges::find_if(plan_.parts, holds);
    DSPACK_CHECK(part != plan_.parts.end(), "a tensor of an expert lies in none of its extents");
    return part->at + (tensor.range.begin - part->extent.range.begin);
  }

  uint64_t place(const format::StoredPlane& plane) {
    const uint64_t stored = place_of(plane.elements());
    const bool stays = plane.make == nullptr && stored % plane.alignment == 0;
    if (stays && plane.check == nullptr) return stored;
    SlotPlan::Step step{.plane = plane, .from = {}, .to = stored};
    for (const format::TensorEntry* tensor : plane.tensors)
      step.from.push_back(place_of(*tensor));
    if (!stays) {
      step.to = round_up(end_, kLine);
      end_ = step.to + plane.bytes;
    }
    return plan_.steps.emplace_back(std::move(step)).to;
  }

  const format::Checkpoint& checkpoint_;
  ExpertKey key_;
  uint64_t grid_;
  SlotPlan plan_;
  uint64_t end_ = 0;
};

}  // namespace

ExpertShape expert_shape(const ModelConfig& config) {
  return {.hidden = config.hidden,
          .expert_inner = config.expert_inner,
          .quantization = config.quantization,
          .names = config.names,
          .limit = config.gate_limit};
}

Result<SlotPlan> plan_slot(const format::Checkpoint& checkpoint, ExpertKey key, const ExpertShape& shape,
                           uint64_t grid) {
  SlotPlanner planner(checkpoint, key, grid);
  planner.place_parts();
  planner.set_limit(shape.limit);
  TRY(planner.add_matrix(0, shape.expert_inner, shape.hidden, shape));
  TRY(planner.add_matrix(1, shape.expert_inner, shape.hidden, shape));
  TRY(planner.add_matrix(2, shape.hidden, shape.expert_inner, shape));
  return planner.finish();
}

Linear SlotPlan::Matrix::at(kernels::Slice begin) const {
  kernels::Weight weight{form};
  for (size_t i = 0; i < planes.size(); ++i) {
    if (planes[i]) weight.planes[i] = begin.at(*planes[i]);
  }
  return Linear(weight);
}

Error explained(const Error& error, ExpertKey key) {
  Error placed = error.in(fmt::format("layer {}, expert {}", key.layer.value, key.expert.value));
  if (error.kind == ErrorKind::not_found && !placed.message.ends_with(format::kFetchAgain))
    placed.message += format::kFetchAgain;
  return placed;
}

Result<void> finish_slot(const format::Checkpoint& checkpoint, const SlotPlan& plan, std::span<std::byte> slot) {
  for (const SlotPlan::Step& step : plan.steps) {
    std::vector<std::span<const std::byte>> stored;
    for (size_t i = 0; i < step.from.size(); ++i)
      stored.emplace_back(slot.subspan(step.from[i], step.plane.tensors[i]->range.size()));
    TRY(step.plane.finish(checkpoint, stored, slot.subspan(step.to, step.plane.bytes)));
  }
  return {};
}

ExpertWeights weights_in(const SlotPlan& plan, kernels::Buffer& slot) {
  const kernels::Slice begin{.buffer = &slot};
  return {.gate = plan.matrices[0].at(begin),
          .up = plan.matrices[1].at(begin),
          .down = plan.matrices[2].at(begin),
          .limit = plan.limit};
}

}  // namespace dspack::runtime
