#include "runtime/experts/expert_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

namespace {

// Alignment of every run of planes: several times the widest load of any device.
constexpr uint64_t kAlignment = 256;
// Least alignment of planes within a run: of codes, which are read by whole cache lines, and of the others.
constexpr uint64_t kCodesAlignment = 128;
constexpr uint64_t kPlaneAlignment = 16;
// Largest gap between two planes, in bytes, that is copied along instead of splitting the copy.
constexpr uint64_t kMaxGap = 256;
constexpr std::array<const char*, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};

Error stored_otherwise(ExpertKey key, const char* projection, const char* like) {
  return {ErrorKind::unsupported,
          fmt::format("layer {}, expert {}: its {} is stored in another way than {}; "
                      "experts that a GPU computes must be stored alike; run on the CPU (--device cpu)",
                      key.layer.value, key.expert.value, projection, like)};
}

/// Whether a device's table of a layer's experts can hold this one: there gate and up are one product, and so are all
/// experts of a layer.
Result<void> check_forms(ExpertKey key, const ExpertLayout& expert, const ExpertLayout& first) {
  if (expert.matrices[0].form != expert.matrices[1].form)
    return stored_otherwise(key, kProjections[1], "its gate_proj");
  for (size_t i = 0; i < kProjections.size(); ++i) {
    if (first.matrices[i].form != expert.matrices[i].form)
      return stored_otherwise(key, kProjections[i], "that of the layer's first expert");
  }
  return {};
}

/// One plane, and its offset in a host slot.
struct PlaneAt {
  size_t matrix = 0, plane = 0;
  uint64_t at = 0, bytes = 0;
};

std::vector<PlaneAt> planes_of(const SlotPlan& plan) {
  std::vector<PlaneAt> planes;
  for (size_t matrix = 0; matrix < plan.matrices.size(); ++matrix) {
    for (size_t plane = 0; plane < kernels::kPlanes; ++plane) {
      const uint64_t bytes = kernels::plane_size(plan.matrices[matrix].form, plane).bytes;
      if (bytes > 0) planes.push_back({matrix, plane, *plan.matrices[matrix].planes[plane], bytes});
    }
  }
  std::ranges::sort(planes, {}, &PlaneAt::at);
  return planes;
}

bool has_forms_of(const ExpertLayout& a, const ExpertLayout& b) {
  return std::ranges::equal(a.matrices, b.matrices, {}, &SlotPlan::Matrix::form, &SlotPlan::Matrix::form);
}

/// Counts how many experts have each layout.
class LayoutCounts {
 public:
  void add(const ExpertLayout& layout) {
    const auto known = std::ranges::find(counts_, layout, &Count::layout);
    ++(known == counts_.end() ? counts_.emplace_back(Count{.layout = layout}) : *known).experts;
  }
  /// The most frequent layout with the same forms as `like`.
  [[nodiscard]] const ExpertLayout& usual(const ExpertLayout& like) const {
    const Count* most = nullptr;
    for (const Count& count : counts_) {
      if (has_forms_of(count.layout, like) && (most == nullptr || count.experts > most->experts)) most = &count;
    }
    DSPACK_CHECK(most != nullptr, "a layout that was not counted");
    return most->layout;
  }

 private:
  struct Count {
    ExpertLayout layout;
    uint64_t experts = 0;
  };
  std::vector<Count> counts_;
};

}  // namespace

// Planes keep the order of the host slot, and its spacing across small gaps, so that one copy transfers the whole run.
ExpertLayout layout_of(const SlotPlan& plan) {
  ExpertLayout layout;
  for (size_t i = 0; i < layout.matrices.size(); ++i)
    layout.matrices[i].form = plan.matrices[i].form;
  uint64_t host_end = 0, end = 0;
  for (const PlaneAt& plane : planes_of(plan)) {
    const uint64_t gap = plane.at - std::min(plane.at, host_end);
    const uint64_t alignment = plane.plane == kernels::kCodes ? kCodesAlignment : kPlaneAlignment;
    const bool goes_on = end > 0 && gap <= kMaxGap && (end + gap) % alignment == 0;
    const uint64_t at = goes_on ? end + gap : round_up(end, kAlignment);
    layout.matrices[plane.matrix].planes[plane.plane] = at;
    end = at + plane.bytes;
    host_end = plane.at + plane.bytes;
  }
  layout.expert_bytes = round_up(end, kAlignment);
  layout.limit = plan.limit;
  return layout;
}

Result<std::map<LayerId, ExpertLayout>> lay_out_experts(const format::Checkpoint& checkpoint,
                                                        const DeviceExperts& wanted, ExpertPresence presence) {
  std::map<LayerId, ExpertLayout> layouts;
  LayoutCounts counts;
  for (const LayerId layer : wanted.layers) {
    for (uint32_t expert = 0; expert < wanted.experts; ++expert) {
      const ExpertKey key{.layer = layer, .expert = ExpertId(expert)};
      const auto plan = plan_slot(checkpoint, key, wanted.shape);
      if (!plan && presence == ExpertPresence::some && plan.error().kind == ErrorKind::not_found) continue;
      if (!plan) return explained(plan.error(), key);
      const ExpertLayout layout = layout_of(*plan);
      const ExpertLayout& first = layouts.try_emplace(layer, layout).first->second;
      TRY(check_forms(key, layout, first));
      counts.add(layout);
    }
  }
  // Layers with the same forms share slots, so they have one layout.
  for (auto& [layer, layout] : layouts)
    layout = counts.usual(layout);
  return layouts;
}

std::vector<SlotLayout> device_slot_layouts(const std::map<LayerId, ExpertLayout>& layouts, uint32_t experts) {
  std::vector<SlotLayout> merged;
  for (const auto& layer : layouts) {
    const auto alike = std::ranges::find_if(
        merged, [&](const SlotLayout& other) { return layouts.at(other.layers.front()) == layer.second; });
    SlotLayout& into = alike == merged.end() ? merged.emplace_back() : *alike;
    into.slot_bytes = layer.second.expert_bytes;
    into.experts += experts;
    into.layers.push_back(layer.first);
  }
  return merged;
}

ExpertWeights weights_at(const ExpertLayout& layout, kernels::Slice begin) {
  return {.gate = layout.matrices[0].at(begin),
          .up = layout.matrices[1].at(begin),
          .down = layout.matrices[2].at(begin),
          .limit = layout.limit};
}

std::vector<ExpertPiece> pieces_of(const ExpertLayout& layout, const ExpertWeights& host, const ExpertWeights& device,
                                   uint64_t most_bytes) {
  struct Run {
    kernels::Slice host, device;
    uint64_t bytes = 0;
  };
  std::vector<Run> planes;
  const std::array<const Linear*, 3> hosts = {&host.gate, &host.up, &host.down};
  const std::array<const Linear*, 3> devices = {&device.gate, &device.up, &device.down};
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t plane = 0; plane < kernels::kPlanes; ++plane) {
      const uint64_t bytes = kernels::plane_size(layout.matrices[i].form, plane).bytes;
      if (bytes > 0) planes.push_back({hosts[i]->weight().planes[plane], devices[i]->weight().planes[plane], bytes});
    }
  }
  std::ranges::sort(planes, {}, [](const Run& run) { return run.device.offset_bytes; });
  std::vector<Run> runs;
  for (const Run& plane : planes) {
    const auto gap_of = [](const kernels::Slice& before, uint64_t bytes, const kernels::Slice& place) {
      return place.offset_bytes - before.offset_bytes - bytes;  // huge if `place` comes first
    };
    Run* const last = runs.empty() ? nullptr : &runs.back();
    const uint64_t gap = last == nullptr ? 0 : gap_of(last->device, last->bytes, plane.device);
    const bool goes_on = last != nullptr && last->host.buffer == plane.host.buffer && gap <= kMaxGap &&
                         gap_of(last->host, last->bytes, plane.host) == gap;
    goes_on ? void(last->bytes += gap + plane.bytes) : runs.push_back(plane);
  }
  std::vector<ExpertPiece> pieces;
  for (const Run& run : runs) {
    for (uint64_t first = 0; first < run.bytes; first += most_bytes) {
      const uint64_t count = std::min(most_bytes, run.bytes - first);
      pieces.push_back({.device = run.device.at(first),
                        .host = kernels::host_bytes(*run.host.buffer).subspan(run.host.offset_bytes + first, count)});
    }
  }
  return pieces;
}

void upload_expert(kernels::Queue& queue, const ExpertLayout& layout, const ExpertWeights& from,
                   const ExpertWeights& to) {
  for (const ExpertPiece& piece : pieces_of(layout, from, to, layout.expert_bytes))
    queue.upload(piece.device, piece.host);
}

}  // namespace dspack::runtime
