#include "reshard/verbs/shard_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "format/base/check.h"
#include "reshard/run/companions.h"

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

/// A tensor as a shard is to have it.
struct Item {
  format::TensorInfo info;  // `data` is set when it has its place
  uint64_t bytes = 0;
  std::vector<uint32_t> parts;  // catalogue indices: itself, or its slices
};

/// In natural order, with whole tensors instead of their slices.
std::vector<Item> items_of(const format::Checkpoint& catalogue, const std::vector<WholeTensor>& whole) {
  std::unordered_map<uint32_t, const WholeTensor*> owners;  // by slice
  for (const WholeTensor& tensor : whole) {
    for (const uint32_t slice : tensor.slices)
      owners.emplace(slice, &tensor);
  }
  std::vector<Item> items;
  for (const uint32_t i : natural_order(catalogue)) {
    const auto owner = owners.find(i);
    if (owner == owners.end()) {
      const TensorEntry& tensor = catalogue.tensors()[i];
      items.push_back({{tensor.name, tensor.dtype, tensor.shape, {}}, tensor.range.size(), {i}});
    } else if (const WholeTensor& tensor = *owner->second; tensor.slices.front() == i) {
      items.push_back({tensor.info, tensor.info.data.size(), tensor.slices});
    }
  }
  return items;
}

/// Image of a shard that holds `items` in an order that aligns them.
ShardImage image_of(std::vector<Item> items) {
  std::ranges::stable_sort(items, std::ranges::greater(), [](const Item& item) { return bits_of(item.info.dtype); });
  ShardImage image{.path = {}, .header = {}, .tensors = {}, .size_bytes = 0, .sha256 = {}};
  std::vector<format::TensorInfo> infos;
  uint64_t at = 0;
  for (Item& item : items) {
    item.info.data = {at, at + item.bytes};
    at += item.bytes;
    infos.push_back(std::move(item.info));
    image.tensors.insert(image.tensors.end(), item.parts.begin(), item.parts.end());
  }
  image.header = format::write_header(infos);
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

std::vector<ShardImage> plan_shards(const format::Checkpoint& catalogue, uint64_t shard_bytes,
                                    const std::vector<WholeTensor>& whole) {
  std::vector<std::vector<Item>> groups(1);
  uint64_t filled = 0;
  for (Item& item : items_of(catalogue, whole)) {
    if (!groups.back().empty() && (filled > shard_bytes || item.bytes > shard_bytes - filled)) {
      groups.emplace_back();
      filled = 0;
    }
    filled += item.bytes;
    groups.back().push_back(std::move(item));
  }
  std::vector<ShardImage> shards;
  for (std::vector<Item>& group : groups) {
    shards.push_back(image_of(std::move(group)));
    shards.back().path = groups.size() == 1
                             ? "model.safetensors"
                             : fmt::format("model-{:05}-of-{:05}.safetensors", shards.size(), groups.size());
  }
  return shards;
}

std::string shard_index(const std::vector<ShardImage>& shards, uint64_t payload_bytes) {
  format::Json map = format::Json::object();
  for (const ShardImage& shard : shards) {
    const auto header = format::parse_header(std::string_view(shard.header).substr(8), shard.size_bytes);
    DSPACK_CHECK(header.has_value(), "a header that was just written cannot be read");
    for (const format::TensorInfo& tensor : header->tensors)
      map[tensor.name] = shard.path;
  }
  return hub_index(payload_bytes, std::move(map));
}

}  // namespace dspack::reshard
