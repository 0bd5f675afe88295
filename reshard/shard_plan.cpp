#include "reshard/shard_plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "reshard/companions.h"

namespace dspack::reshard {
namespace {

using format::TensorEntry;

/// What natural order compares before names.
auto natural_key(const TensorEntry& tensor) {
  const format::TensorName& place = tensor.place;
  const bool embed = place.role == format::Role::embed;
  const bool head = place.role == format::Role::head;
  const int part = embed ? 0 : place.layer ? 1 : head ? 2 : 3;
  return std::tuple(part, place.layer, place.expert);  // no expert comes before every expert
}

/// Image of a shard that holds `tensors` in an order that aligns them.
ShardImage image_of(std::vector<uint32_t> tensors, const format::Checkpoint& catalogue) {
  const auto bits = [&](uint32_t i) { return bits_of(catalogue.tensors()[i].dtype); };
  std::stable_sort(tensors.begin(), tensors.end(), [&](uint32_t a, uint32_t b) { return bits(a) > bits(b); });
  std::vector<format::TensorInfo> infos;
  uint64_t at = 0;
  for (const uint32_t i : tensors) {
    const TensorEntry& tensor = catalogue.tensors()[i];
    infos.push_back({tensor.name, tensor.dtype, tensor.shape, {at, at + tensor.range.size()}});
    at += tensor.range.size();
  }
  ShardImage image{
      .path = {}, .header = format::write_header(infos), .tensors = std::move(tensors), .size_bytes = 0, .sha256 = {}};
  image.size_bytes = image.header.size() + at;
  return image;
}

}  // namespace

std::vector<uint32_t> natural_order(const format::Checkpoint& catalogue) {
  std::vector<uint32_t> order(catalogue.tensors().size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const TensorEntry& x = catalogue.tensors()[a];
    const TensorEntry& y = catalogue.tensors()[b];
    const auto left = natural_key(x);
    const auto right = natural_key(y);
    return left != right ? left < right : x.name < y.name;
  });
  return order;
}

std::vector<ShardImage> plan_shards(const format::Checkpoint& catalogue, uint64_t shard_bytes) {
  std::vector<std::vector<uint32_t>> groups(1);
  uint64_t filled = 0;
  for (const uint32_t i : natural_order(catalogue)) {
    const uint64_t bytes = catalogue.tensors()[i].range.size();
    if (!groups.back().empty() && (filled > shard_bytes || bytes > shard_bytes - filled)) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(i);
    filled += bytes;
  }
  std::vector<ShardImage> shards;
  for (std::vector<uint32_t>& group : groups) {
    shards.push_back(image_of(std::move(group), catalogue));
    shards.back().path = groups.size() == 1
                             ? "model.safetensors"
                             : fmt::format("model-{:05}-of-{:05}.safetensors", shards.size(), groups.size());
  }
  return shards;
}

std::string shard_index(const std::vector<ShardImage>& shards, const format::Checkpoint& catalogue) {
  format::Json map = format::Json::object();
  for (const ShardImage& shard : shards) {
    for (const uint32_t i : shard.tensors)
      map[catalogue.tensors()[i].name] = shard.path;
  }
  return hub_index(catalogue.payload_bytes(), std::move(map));
}

}  // namespace dspack::reshard
