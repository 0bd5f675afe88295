#include "runtime/experts/expert_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

namespace {

// Where every matrix begins: what the widest loads of any device want, several times over.
constexpr uint64_t kAlignment = 256;
constexpr std::array<const char*, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};

Error stored_otherwise(ExpertKey key, const char* projection) {
  return {ErrorKind::unsupported,
          fmt::format("layer {}, expert {}: its {} is stored in another way than that of the layer's first expert; "
                      "experts that a GPU computes must be stored alike; run on the CPU (--device cpu)",
                      key.layer.value, key.expert.value, projection)};
}

ExpertLayout layout_of(const SlotPlan& plan) {
  ExpertLayout layout;
  for (size_t i = 0; i < layout.matrices.size(); ++i) {
    SlotPlan::Matrix& matrix = layout.matrices[i];
    matrix.form = plan.matrices[i].form;
    for (size_t plane = 0; plane < matrix.planes.size(); ++plane) {
      const uint64_t bytes = kernels::plane_size(matrix.form, plane).bytes;
      if (bytes == 0) continue;
      matrix.planes[plane] = layout.expert_bytes;
      layout.expert_bytes = round_up(layout.expert_bytes + bytes, kAlignment);
    }
  }
  return layout;
}

}  // namespace

Result<std::map<LayerId, ExpertLayout>> lay_out_experts(const format::Checkpoint& checkpoint,
                                                        const DeviceExperts& wanted, ExpertPresence presence) {
  std::map<LayerId, ExpertLayout> layouts;
  for (const LayerId layer : wanted.layers) {
    for (uint32_t expert = 0; expert < wanted.experts; ++expert) {
      const ExpertKey key{.layer = layer, .expert = ExpertId(expert)};
      const auto plan = plan_slot(checkpoint, key, wanted.shape);
      if (!plan && presence == ExpertPresence::some && plan.error().kind == ErrorKind::not_found) continue;
      if (!plan) return explained(plan.error(), key);
      const auto [place, is_first] = layouts.try_emplace(layer);
      if (is_first) place->second = layout_of(*plan);
      for (size_t i = 0; i < kProjections.size(); ++i) {
        if (place->second.matrices[i].form != plan->matrices[i].form) return stored_otherwise(key, kProjections[i]);
      }
    }
  }
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
  return {
      .gate = layout.matrices[0].at(begin), .up = layout.matrices[1].at(begin), .down = layout.matrices[2].at(begin)};
}

std::vector<ExpertPiece> pieces_of(const ExpertLayout& layout, const ExpertWeights& from, const ExpertWeights& to,
                                   uint64_t most_bytes) {
  std::vector<ExpertPiece> pieces;
  const std::array<const Linear*, 3> sources = {&from.gate, &from.up, &from.down};
  const std::array<const Linear*, 3> targets = {&to.gate, &to.up, &to.down};
  for (size_t i = 0; i < sources.size(); ++i) {
    for (size_t plane = 0; plane < kernels::kPlanes; ++plane) {
      const kernels::Slice& source = sources[i]->weight().planes[plane];
      const uint64_t bytes = kernels::plane_size(layout.matrices[i].form, plane).bytes;
      for (uint64_t first = 0; first < bytes; first += most_bytes) {
        const uint64_t count = std::min(most_bytes, bytes - first);
        pieces.push_back({.to = targets[i]->weight().planes[plane].at(first),
                          .from = kernels::host_bytes(*source.buffer).subspan(source.offset_bytes + first, count)});
      }
    }
  }
  return pieces;
}

void upload_expert(kernels::Queue& queue, const ExpertLayout& layout, const ExpertWeights& from,
                   const ExpertWeights& to) {
  for (const ExpertPiece& piece : pieces_of(layout, from, to, layout.expert_bytes))
    queue.upload(piece.to, piece.from);
}

}  // namespace dspack::runtime
