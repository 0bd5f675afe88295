#include "runtime/access/overlay_tier.h"

#include <algorithm>

#include "format/base/size.h"

namespace dspack::runtime {

OverlayTier::OverlayTier(const format::Checkpoint& catalogue, std::vector<uint32_t> own,
                         std::vector<std::unique_ptr<Tier>> tiers)
    : catalogue_(catalogue), own_(std::move(own)) {
  DSPACK_CHECK(!tiers.empty(), "an overlay of no tier");
  size_t first = 0;
  for (std::unique_ptr<Tier>& tier : tiers) {
    const size_t files = tier->checkpoint().files().size();
    layers_.push_back({.tier = std::move(tier), .first_file = narrow<uint32_t>(first)});
    first += files;
  }
}

const OverlayTier::Layer& OverlayTier::layer_of(uint32_t file) const {
  return *std::prev(std::ranges::upper_bound(layers_, file, {}, &Layer::first_file));
}

Tier& OverlayTier::tier_of(ExpertKey expert) const {
  const std::span<const uint32_t> tensors = catalogue_.expert(expert);
  return tensors.empty() ? *layers_.front().tier : *layer_of(catalogue_.tensors()[tensors.front()].file).tier;
}

const format::TensorEntry& OverlayTier::own_entry(const format::TensorEntry& tensor) const {
  const auto number = static_cast<size_t>(&tensor - catalogue_.tensors().data());
  return layer_of(tensor.file).tier->checkpoint().tensors()[own_[number]];
}

Result<void> OverlayTier::read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) {
  const Layer& layer = layer_of(file);
  return layer.tier->read(file - layer.first_file, offset, into, stop);
}

std::optional<format::Digest> OverlayTier::digest_of(const format::TensorEntry& tensor) const {
  return layer_of(tensor.file).tier->digest_of(own_entry(tensor));
}

Result<void> OverlayTier::expect(std::span<const format::Extent> extents, const std::stop_token& stop) {
  for (const Layer& layer : layers_) {
    std::vector<format::Extent> own;
    for (const format::Extent& extent : extents) {
      if (&layer_of(extent.file) == &layer)
        own.push_back({.file = extent.file - layer.first_file, .range = extent.range});
    }
    TRY(layer.tier->expect(own, stop));
  }
  return {};
}

Result<void> OverlayTier::keep(ExpertKey expert, std::span<const TensorBytes> tensors, const std::stop_token& stop) {
  std::vector<TensorBytes> own;
  for (const TensorBytes& tensor : tensors)
    own.push_back({.tensor = &own_entry(*tensor.tensor), .bytes = tensor.bytes});
  return tier_of(expert).keep(expert, own, stop);
}

bool OverlayTier::is_distant() const {
  return std::ranges::any_of(layers_, [](const Layer& layer) { return layer.tier->is_distant(); });
}

std::optional<NetworkTraffic> OverlayTier::traffic() const {
  std::optional<NetworkTraffic> all;
  for (const Layer& layer : layers_) {
    const auto own = layer.tier->traffic();
    if (!own) continue;
    if (!all) all.emplace();
    *all += *own;
  }
  return all;
}

uint64_t OverlayTier::block_bytes(uint32_t file) const {
  const Layer& layer = layer_of(file);
  return layer.tier->block_bytes(file - layer.first_file);
}

unsigned OverlayTier::depth() const {
  unsigned depth = 0;
  for (const Layer& layer : layers_)
    depth = std::max(depth, layer.tier->depth());
  return depth;
}

}  // namespace dspack::runtime
