#include "reshard/verbs/rebuild.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "format/base/check.h"
#include "format/fused_experts.h"
#include "format/index.h"
#include "format/kept_headers.h"
#include "format/tensor_pass.h"
#include "reshard/run/companions.h"

namespace dspack::reshard {
namespace {

using format::Json;

/// The image of one shard, from its header text. A tensor that is not in the catalogue was packed in slices.
Result<ShardImage> image_of(const format::SourceShard& shard, const std::string& text,
                            const format::Checkpoint& catalogue, std::vector<bool>& used) {
  TRY_ASSIGN(const format::SafetensorsHeader header, format::parse_header(text, shard.size_bytes));
  ShardImage image{.path = shard.path,
                   .header = std::string(8, '\0') + text,
                   .tensors = {},
                   .size_bytes = shard.size_bytes,
                   .sha256 = shard.sha256};
  for (size_t i = 0; i < 8; ++i)
    image.header[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  const auto use = [&](const format::TensorInfo& tensor) -> Result<void> {
    const format::TensorEntry* packed = catalogue.find(tensor.name);
    if (packed == nullptr || packed->dtype != tensor.dtype || packed->shape != tensor.shape) {
      return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" {}", tensor.name,
                                                   packed == nullptr ? "is not in the packed repository"
                                                                     : "is packed with another dtype or shape")};
    }
    const auto index = static_cast<uint32_t>(packed - catalogue.tensors().data());
    if (used[index]) return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" is in two shards", tensor.name)};
    used[index] = true;
    image.tensors.push_back(index);
    return {};
  };
  for (const format::TensorInfo& tensor : header.tensors) {
    const auto slices = catalogue.find(tensor.name) == nullptr ? format::slices_of(tensor) : std::nullopt;
    if (!slices) {
      TRY(use(tensor));
      continue;
    }
    for (const format::TensorInfo& slice : *slices)
      TRY(use(slice));
  }
  return image;
}

/// Catalogue indices of a tensor's slices: all of them, or none.
Result<std::vector<uint32_t>> find_slices(const std::vector<format::TensorInfo>& slices, const std::string& name,
                                          const format::Checkpoint& catalogue) {
  std::vector<uint32_t> found;
  for (const format::TensorInfo& slice : slices) {
    const format::TensorEntry* packed = catalogue.find(slice.name);
    if (packed == nullptr || packed->dtype != slice.dtype || packed->shape != slice.shape) continue;
    found.push_back(static_cast<uint32_t>(packed - catalogue.tensors().data()));
  }
  if (found.empty() || found.size() == slices.size()) return found;
  return Error{ErrorKind::invalid,
               fmt::format("\"{}\" cannot be put together: {} of its {} experts are in the packed repository", name,
                           found.size(), slices.size())};
}

}  // namespace

Result<void> check_rebuildable(const format::Repository& packed, const format::Manifest& manifest) {
  if (!holds_source_bytes(manifest)) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: was made with the recipe {}, which leaves out or converts weights, so the source's "
                             "shards cannot be rebuilt from it (reshard verify --source SOURCE applies the recipe "
                             "once more and compares)",
                             packed.description(), format::canonical_json(manifest.recipe))};
  }
  for (const format::SourceShard& shard : manifest.source) {
    if (shard.sha256) continue;
    return Error{ErrorKind::invalid,
                 fmt::format("{}: says that it holds all of source shard {}, and that not all of it "
                             "was read",
                             packed.locate(format::kManifestPath), shard.path)};
  }
  return {};
}

Result<std::vector<ShardImage>> source_shards(format::Repository& packed, const format::Checkpoint& catalogue,
                                              const std::stop_token& stop) {
  const format::Manifest& manifest = *catalogue.manifest();
  TRY(check_rebuildable(packed, manifest));
  TRY_ASSIGN(const Json headers, format::read_kept_headers(packed, manifest, stop));
  const std::string place = packed.locate(format::kHeadersPath);
  std::vector<bool> used(catalogue.tensors().size(), false);
  std::vector<ShardImage> images;
  for (const format::SourceShard& shard : manifest.source) {
    const auto text = headers.find(shard.path);
    if (text == headers.end() || !text->is_string()) {
      return Error{ErrorKind::invalid, fmt::format("{}: has no header of source shard {}", place, shard.path)};
    }
    auto image = image_of(shard, text->get_ref<const std::string&>(), catalogue, used);
    if (!image) return image.error().in(fmt::format("{}: source shard {}", place, shard.path));
    images.push_back(std::move(image).value());
  }
  if (headers.size() != manifest.source.size()) {
    return Error{ErrorKind::invalid,
                 place + ": has headers of shards that the manifest does not name, or one is twice"};
  }
  const auto orphan = std::find(used.begin(), used.end(), false);
  if (orphan != used.end()) {
    const auto& tensor = catalogue.tensors()[static_cast<size_t>(orphan - used.begin())];
    return Error{ErrorKind::invalid, fmt::format("{}: tensor \"{}\" is in no source shard", place, tensor.name)};
  }
  return images;
}

Result<std::vector<WholeTensor>> whole_tensors(format::Repository& packed, const format::Checkpoint& catalogue,
                                               const std::stop_token& stop) {
  const format::Manifest& manifest = *catalogue.manifest();
  if (!has_requirement(manifest, format::kFusedExpertsKey)) return std::vector<WholeTensor>();
  TRY_ASSIGN(const Json headers, format::read_kept_headers(packed, manifest, stop));
  const std::string place = packed.locate(format::kHeadersPath);
  std::vector<WholeTensor> whole;
  std::set<uint32_t> used;
  for (const format::SourceShard& shard : manifest.source) {
    const auto text = headers.find(shard.path);
    if (text == headers.end() || !text->is_string())
      return Error{ErrorKind::invalid, fmt::format("{}: has no header of source shard {}", place, shard.path)};
    auto header = format::parse_header(text->get_ref<const std::string&>(), shard.size_bytes);
    if (!header) return header.error().in(fmt::format("{}: source shard {}", place, shard.path));
    for (format::TensorInfo& tensor : header->tensors) {
      const auto slices = catalogue.find(tensor.name) == nullptr ? format::slices_of(tensor) : std::nullopt;
      if (!slices) continue;
      TRY_ASSIGN(std::vector<uint32_t> found, find_slices(*slices, tensor.name, catalogue));
      for (const uint32_t slice : found) {
        if (used.insert(slice).second) continue;
        return Error{ErrorKind::invalid,
                     fmt::format("{}: tensor \"{}\" is in two shards", place, catalogue.tensors()[slice].name)};
      }
      if (!found.empty()) whole.push_back({std::move(tensor), std::move(found)});
    }
  }
  return whole;
}

Result<RebuiltShard> rebuild(const ShardImage& image, const format::Checkpoint& catalogue, TensorReader& reader,
                             const format::ByteSink& sink, format::Progress& progress, const std::stop_token& stop) {
  std::vector<format::TensorPass::Tensor> passed;
  uint64_t at = image.header.size();
  for (const uint32_t index : image.tensors) {
    const uint64_t bytes = catalogue.tensors()[index].range.size();
    passed.push_back({.range = {at, at + bytes}});
    at += bytes;
  }
  format::TensorPass pass(std::move(passed), 0, format::TensorPass::Whole::digested);
  const format::ByteSink digest = [&](std::span<const std::byte> bytes) -> Result<void> {
    pass.take(bytes);
    progress.advanced(bytes.size());
    return sink(bytes);
  };
  pass.take(format::as_bytes(image.header));
  TRY(sink(format::as_bytes(image.header)));
  for (const uint32_t index : image.tensors)
    TRY(reader.stream(catalogue.tensors()[index], digest, stop));
  const format::TensorPass::Sums sums = pass.finish();
  RebuiltShard result{.sha256 = sums.whole, .damaged = {}};
  for (size_t i = 0; i < image.tensors.size(); ++i) {
    const format::TensorEntry& tensor = catalogue.tensors()[image.tensors[i]];
    if (sums.tensors[i].whole != tensor.digest) {
      result.damaged.push_back(
          fmt::format("{}: tensor \"{}\" differs from its digest", catalogue.files()[tensor.file].path, tensor.name));
    }
  }
  return result;
}

namespace {

using format::TensorEntry;

/// The part of the natural order that comes before names.
auto natural_key(const TensorEntry& tensor) {
  const format::TensorName& place = tensor.place;
  const bool embed = place.role == format::Role::embed;
  const bool head = place.role == format::Role::head;
  const int part = embed ? 0 : place.layer ? 1 : head ? 2 : 3;
  return std::tuple(part, place.layer, place.expert);  // tensors without an expert come before all experts
}

/// A tensor to be written to a shard.
struct Item {
  format::TensorInfo info;  // `data` is set when it is placed
  uint64_t bytes = 0;
  std::vector<uint32_t> parts;  // catalogue indices: the tensor itself, or its slices
};

/// The tensors in natural order, with whole tensors instead of their slices.
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

/// The image of a shard that holds `items` in an order that aligns them.
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
  return format::hub_index(payload_bytes, std::move(map));
}

}  // namespace dspack::reshard
