#include "runtime/experts/slot_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "format/base/checked.h"
#include "runtime/model/names.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

namespace {

// Vector loads are fastest from a cache line's start.
constexpr uint64_t kLine = 64;

class SlotPlanner {
 public:
  SlotPlanner(const format::Checkpoint& checkpoint, ExpertKey key) : checkpoint_(checkpoint), key_(key) {}

  void place_parts() {
    for (const format::Extent& extent : checkpoint_.expert_extents(key_)) {
      const uint64_t at = round_up(end_, kPageBytes) + extent.range.begin % kPageBytes;
      plan_.parts.push_back({.extent = extent, .at = at});
      plan_.stored_bytes += extent.range.size();
      end_ = at + extent.range.size();
    }
    for (const uint32_t index : checkpoint_.expert(key_)) {
      const format::TensorEntry& tensor = checkpoint_.tensors()[index];
      plan_.tensors.push_back({.tensor = &tensor, .at = place_of(tensor)});
    }
  }

  Result<void> add_matrix(size_t index, const char* projection, uint32_t out, uint32_t in, const ExpertShape& shape) {
    const std::string name = names::expert(key_) + "." + projection + ".weight";
    TRY_ASSIGN(const LinearSource source, find_linear(checkpoint_, name, out, in, shape.fp8_block));
    SlotPlan::Matrix& matrix = plan_.matrices[index];
    matrix.form = source.form;
    const uint64_t element = std::max(1U, bits_of(source.weight->dtype) / 8);
    matrix.data = place_of(*source.weight);
    if (matrix.data % element != 0) matrix.data = move(*source.weight, source.weight->range.size(), false);
    if (source.scale == nullptr) return {};
    const uint64_t stored = place_of(*source.scale);
    const bool usable = source.scale->dtype == Dtype::f32 && stored % sizeof(float) == 0;
    matrix.scale = usable ? stored : move(*source.scale, source.scale_values() * sizeof(float), true);
    return {};
  }

  SlotPlan finish() {
    plan_.slot_bytes = round_up(end_, kPageBytes);
    return std::move(plan_);
  }

 private:
  [[nodiscard]] uint64_t place_of(const format::TensorEntry& tensor) const {
    const auto holds = [&](const SlotPlan::Part& part) {
      return part.extent.file == tensor.file && part.extent.range.begin <= tensor.range.begin &&
             tensor.range.end <= part.extent.range.end;
    };
    const auto part = std::ranges::find_if(plan_.parts, holds);
    DSPACK_CHECK(part != plan_.parts.end(), "a tensor of an expert lies in none of its extents");
    return part->at + (tensor.range.begin - part->extent.range.begin);
  }

  uint64_t move(const format::TensorEntry& tensor, uint64_t bytes, bool to_f32) {
    const uint64_t to = round_up(end_, kLine);
    plan_.moves.push_back({.tensor = &tensor, .from = place_of(tensor), .to = to, .to_f32 = to_f32});
    end_ = to + bytes;
    return to;
  }

  const format::Checkpoint& checkpoint_;
  ExpertKey key_;
  SlotPlan plan_;
  uint64_t end_ = 0;
};

}  // namespace

Result<SlotPlan> plan_slot(const format::Checkpoint& checkpoint, ExpertKey key, const ExpertShape& shape) {
  SlotPlanner planner(checkpoint, key);
  planner.place_parts();
  TRY(planner.add_matrix(0, "gate_proj", shape.expert_inner, shape.hidden, shape));
  TRY(planner.add_matrix(1, "up_proj", shape.expert_inner, shape.hidden, shape));
  TRY(planner.add_matrix(2, "down_proj", shape.hidden, shape.expert_inner, shape));
  return planner.finish();
}

Error explained(const Error& error, ExpertKey key) {
  Error placed = error.in(fmt::format("layer {}, expert {}", key.layer.value, key.expert.value));
  if (error.kind == ErrorKind::not_found) placed.message += "; fetch it from where the repository is from";
  return placed;
}

void finish_slot(const SlotPlan& plan, std::span<std::byte> slot) {
  for (const SlotPlan::Move& move : plan.moves) {
    const auto stored = slot.subspan(move.from, move.tensor->range.size());
    if (!move.to_f32) {
      std::memcpy(slot.data() + move.to, stored.data(), stored.size());
      continue;
    }
    const size_t count = stored.size() / (bits_of(move.tensor->dtype) / 8);
    widen_to_f32(move.tensor->dtype, stored, {reinterpret_cast<float*>(slot.data() + move.to), count});
  }
}

ExpertWeights weights_in(const SlotPlan& plan, kernels::Buffer& slot) {
  const auto linear = [&](const SlotPlan::Matrix& matrix) {
    kernels::Weight weight = matrix.form;
    weight.data = {.buffer = &slot, .offset_bytes = matrix.data};
    if (matrix.scale) weight.scale = {.buffer = &slot, .offset_bytes = *matrix.scale};
    return Linear(weight);
  };
  return {.gate = linear(plan.matrices[0]), .up = linear(plan.matrices[1]), .down = linear(plan.matrices[2])};
}

}  // namespace dspack::runtime
