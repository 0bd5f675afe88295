#include "runtime/experts/expert_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/checked.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

namespace {

// Where every matrix begins: what the widest loads of any device want, several times over.
constexpr uint64_t kAlignment = 256;
constexpr std::array<const char*, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};

uint64_t data_bytes_of(const kernels::Weight& form) {
  return uint64_t{form.out} * form.in * (bits_of(form.dtype) / 8);
}

uint64_t scale_bytes_of(const kernels::Weight& form) {
  return ceil_div(form.out, form.block_out) * ceil_div(form.in, form.block_in) * sizeof(float);
}

bool is_stored_alike(const SlotPlan::Matrix& a, const SlotPlan::Matrix& b) {
  return a.form.dtype == b.form.dtype && a.scale.has_value() == b.scale.has_value() &&
         a.form.block_out == b.form.block_out && a.form.block_in == b.form.block_in;
}

Error stored_otherwise(ExpertKey key, const char* projection) {
  return {ErrorKind::unsupported,
          fmt::format("layer {}, expert {}: its {} is stored in another way than that of the layer's first expert; "
                      "experts that a GPU computes must be stored alike; run on the CPU (--device cpu)",
                      key.layer.value, key.expert.value, projection)};
}

ExpertLayout layout_of(const SlotPlan& plan) {
  ExpertLayout layout;
  uint64_t end = 0;
  const auto place = [&](uint64_t bytes) {
    const uint64_t at = end;
    end = round_up(end + bytes, kAlignment);
    return at;
  };
  for (size_t i = 0; i < layout.places.size(); ++i) {
    ExpertLayout::Place& to = layout.places[i];
    to.matrix.form = plan.matrices[i].form;
    to.data_bytes = data_bytes_of(to.matrix.form);
    to.matrix.data = place(to.data_bytes);
    if (!plan.matrices[i].scale) continue;
    to.scale_bytes = scale_bytes_of(to.matrix.form);
    to.matrix.scale = place(to.scale_bytes);
  }
  layout.expert_bytes = end;
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
        if (!is_stored_alike(place->second.places[i].matrix, plan->matrices[i]))
          return stored_otherwise(key, kProjections[i]);
      }
    }
  }
  return layouts;
}

bool is_same_layout(const ExpertLayout& a, const ExpertLayout& b) {
  return a.expert_bytes == b.expert_bytes &&
         std::ranges::equal(a.places, b.places, [](const ExpertLayout::Place& x, const ExpertLayout::Place& y) {
           return is_stored_alike(x.matrix, y.matrix) && x.matrix.form.out == y.matrix.form.out &&
                  x.matrix.form.in == y.matrix.form.in;
         });
}

std::vector<SlotLayout> device_slot_layouts(const std::map<LayerId, ExpertLayout>& layouts, uint32_t experts) {
  std::vector<SlotLayout> merged;
  for (const auto& layer : layouts) {
    const auto alike = std::ranges::find_if(merged, [&](const SlotLayout& other) {
      return is_same_layout(layouts.at(other.layers.front()), layer.second);
    });
    SlotLayout& into = alike == merged.end() ? merged.emplace_back() : *alike;
    into.slot_bytes = layer.second.expert_bytes;
    into.experts += experts;
    into.layers.push_back(layer.first);
  }
  return merged;
}

ExpertWeights weights_at(const ExpertLayout& layout, kernels::Slice begin) {
  const auto linear = [&](const ExpertLayout::Place& place) {
    kernels::Weight weight = place.matrix.form;
    weight.data = begin.at(place.matrix.data);
    if (place.matrix.scale) weight.scale = begin.at(*place.matrix.scale);
    return Linear(weight);
  };
  return {.gate = linear(layout.places[0]), .up = linear(layout.places[1]), .down = linear(layout.places[2])};
}

void upload_expert(kernels::Queue& queue, const ExpertLayout& layout, const ExpertWeights& from,
                   const ExpertWeights& to) {
  const auto upload = [&](kernels::Slice into, kernels::Slice source, uint64_t bytes) {
    queue.upload(into, kernels::host_bytes(*source.buffer).subspan(source.offset_bytes, bytes));
  };
  const std::array<const Linear*, 3> sources = {&from.gate, &from.up, &from.down};
  const std::array<const Linear*, 3> targets = {&to.gate, &to.up, &to.down};
  for (size_t i = 0; i < sources.size(); ++i) {
    const ExpertLayout::Place& place = layout.places[i];
    upload(targets[i]->weight().data, sources[i]->weight().data, place.data_bytes);
    if (place.matrix.scale) upload(targets[i]->weight().scale, sources[i]->weight().scale, place.scale_bytes);
  }
}

}  // namespace dspack::runtime
