#include "format/completeness.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace dspack::format {

namespace {

/// In some models every few layers are of another kind; among this many layers there are at least two of them.
constexpr size_t kLeastLayers = 8;

/// Counts losses of one kind and keeps the first.
class Losses {
 public:
  void add(const std::string& one) {
    if (count_++ == 0) first_ = one;
  }
  void report(std::vector<std::string>& into) const {
    if (count_ == 0) return;
    into.push_back(count_ == 1 ? first_ : fmt::format("{} (and {} more such losses)", first_, count_ - 1));
  }

 private:
  uint64_t count_ = 0;
  std::string first_;
};

/// The owners (experts of a layer, or layers) of a tensor, by name template.
template <class Owner>
using Owners = std::map<std::string, std::set<Owner>>;

/// Calls `lost` with each owner that lacks a template which all others have. Does nothing for fewer than `least`
/// owners, which do not show what is usual.
template <class Owner, class Lost>
void find_lost(const std::set<Owner>& all, const Owners<Owner>& owners, size_t least, const Lost& lost) {
  if (all.size() < least) return;
  for (const auto& [text, have] : owners) {
    if (have.size() + 1 != all.size()) continue;
    // Renamed in the capture: clang 14 cannot capture a structured binding.
    const auto without =
        std::ranges::find_if(all, [&having = have](const Owner& owner) { return !having.contains(owner); });
    lost(text, *without);
  }
}

void compare_experts(const Checkpoint& checkpoint, Losses& tensors, Losses& experts) {
  std::map<LayerId, std::set<ExpertId>> by_layer;
  uint64_t in_any = 0;
  for (const auto& [key, members] : checkpoint.experts()) {
    by_layer[key.layer].insert(key.expert);
    in_any = std::max<uint64_t>(in_any, uint64_t{key.expert.value} + 1);
  }
  // If only a minority of layers has fewer experts, their last experts are lost; otherwise the model was pruned that
  // way.
  const auto fewer = std::ranges::count_if(
      by_layer, [&](const auto& layer) { return uint64_t{layer.second.rbegin()->value} + 1 < in_any; });
  const bool are_few = 2 * static_cast<uint64_t>(fewer) < by_layer.size();
  for (const auto& [layer, present] : by_layer) {
    Owners<ExpertId> owners;
    for (const ExpertId expert : present) {
      for (const uint32_t tensor : checkpoint.expert({layer, expert}))
        owners[name_template(checkpoint.tensors()[tensor].name)].insert(expert);
    }
    find_lost(present, owners, 3, [&, layer = layer](const std::string& text, ExpertId expert) {
      tensors.add(
          fmt::format("{} is missing, which the other experts of layer {} have; the checkpoint may be incomplete",
                      expand_template(text, layer, expert), layer_text(layer)));
    });
    const uint64_t most = are_few ? in_any : uint64_t{present.rbegin()->value} + 1;
    if (present.size() > 1 && most > present.size()) {
      uint32_t gap = 0;
      while (present.contains(ExpertId(gap)))
        ++gap;
      experts.add(fmt::format("layer {} has no expert {}, though it has {} of {}; the checkpoint may be incomplete",
                              layer_text(layer), gap, present.size(), most));
    }
  }
}

void compare_layers(const Checkpoint& checkpoint, Losses& losses) {
  std::set<LayerId> with_experts;
  for (const auto& [key, members] : checkpoint.experts())
    if (!is_numbered_apart(key.layer)) with_experts.insert(key.layer);
  Owners<LayerId> owners;
  for (const TensorEntry& tensor : checkpoint.tensors()) {
    if (tensor.place.layer && !tensor.place.expert && with_experts.contains(*tensor.place.layer))
      owners[name_template(tensor.name)].insert(*tensor.place.layer);
  }
  find_lost(with_experts, owners, kLeastLayers, [&](const std::string& text, LayerId layer) {
    losses.add(fmt::format("{} is missing, which all other layers with experts have; the checkpoint may be incomplete",
                           expand_template(text, layer, {})));
  });
}

void find_gap(const Checkpoint& checkpoint, Losses& losses) {
  std::set<uint32_t> layers;
  for (const TensorEntry& tensor : checkpoint.tensors()) {
    if (tensor.place.layer && !is_numbered_apart(*tensor.place.layer)) layers.insert(tensor.place.layer->value);
  }
  if (layers.size() < 2) return;
  for (uint32_t next = *layers.begin(); const uint32_t layer : layers) {
    if (layer != next) {
      losses.add(fmt::format("layer {} is missing between others; the checkpoint may be incomplete", next));
      return;
    }
    ++next;
  }
}

}  // namespace

std::vector<std::string> missing_parts(const Checkpoint& checkpoint) {
  Losses layers, of_layers, experts, of_experts;
  find_gap(checkpoint, layers);
  compare_layers(checkpoint, of_layers);
  compare_experts(checkpoint, of_experts, experts);
  std::vector<std::string> sentences;
  for (const Losses* losses : {&layers, &of_layers, &experts, &of_experts})
    losses->report(sentences);
  return sentences;
}

}  // namespace dspack::format
