#include "format/packing/grouping.h"

#include <algorithm>
#include <compare>
#include <map>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "format/base/ids.h"
#include "format/base/near_word.h"
#include "format/base/size.h"
#include "format/safetensors.h"

namespace dspack::format {
namespace {

Result<Grouping> parse_expert_count(std::string_view text) {
  const std::optional<uint64_t> count = parse_decimal(text);
  if (!count || *count == 0 || *count > kMaxId) {
    return invalid(
        fmt::format("\"expert:{}\": the number of experts a file is from 1 to {}, as in \"expert:8\"", text, kMaxId));
  }
  return Grouping{.kind = Grouping::Kind::expert, .experts_per_file = *count, .shard_bytes = 0};
}

Result<Grouping> parse_shard_size(std::string_view text) {
  const auto bytes = parse_size(text);
  if (!bytes) return bytes.error().in(fmt::format("\"shard:{}\"", text));
  // The header alone takes a page.
  if (*bytes <= kPageBytes) {
    return invalid(fmt::format(
        "\"shard:{}\": too small for a file with its header; more than {} bytes are needed, \"shard:5GB\" is usual",
        text, kPageBytes));
  }
  return Grouping{.kind = Grouping::Kind::shard, .experts_per_file = 1, .shard_bytes = *bytes};
}

}  // namespace

Result<Grouping> parse_grouping(std::string_view text) {
  constexpr std::string_view kExperts = "expert:";
  constexpr std::string_view kShards = "shard:";
  if (text == "expert") return Grouping{};
  if (text == "layer") return Grouping{.kind = Grouping::Kind::layer, .experts_per_file = 1, .shard_bytes = 0};
  if (text.starts_with(kExperts)) return parse_expert_count(text.substr(kExperts.size()));
  if (text.starts_with(kShards)) return parse_shard_size(text.substr(kShards.size()));
  static const std::vector<std::string> kNames{"expert", "layer", "shard:5GB"};
  return invalid(fmt::format(
      "\"{}\" is no grouping; use \"expert\", \"expert:N\", \"layer\" or \"shard:SIZE\" (as in \"shard:5GB\"){}", text,
      did_you_mean(text, kNames)));
}

std::string to_string(const Grouping& grouping) {
  switch (grouping.kind) {
    case Grouping::Kind::expert:
      return grouping.experts_per_file == 1 ? "expert" : fmt::format("expert:{}", grouping.experts_per_file);
    case Grouping::Kind::layer: return "layer";
    case Grouping::Kind::shard: return fmt::format("shard:{}", grouping.shard_bytes);
  }
  return {};
}

namespace {

// Files by expert or layer -------------------------------------------------------------------------------------------

/// Experts of a layer with the same number share a file; when grouping by layer, all have the same.
uint32_t group_of(ExpertId expert, const Grouping& grouping) {
  if (grouping.kind == Grouping::Kind::layer) return 0;
  return expert.value / narrow<uint32_t>(grouping.experts_per_file);
}

/// Determines the file of a tensor.
struct FileKey {
  std::string_view part;
  std::optional<LayerId> layer;
  uint32_t group = 0;  // group_of its expert
  auto operator<=>(const FileKey&) const = default;
};

FileKey file_key(const TensorName& name, const Grouping& grouping) {
  if (name.role == Role::embed) return {.part = "embed", .layer = {}, .group = 0};
  if (name.role == Role::head) return {.part = "head", .layer = {}, .group = 0};
  if (name.expert) return {.part = "expert", .layer = name.layer, .group = group_of(*name.expert, grouping)};
  if (name.layer) return {.part = "dense", .layer = name.layer, .group = 0};
  return {.part = "other", .layer = {}, .group = 0};
}

std::string path_of(const Placement& file, const Grouping& grouping) {
  if (!file.layer) return fmt::format("model/{}.safetensors", file.part);
  const std::string folder = is_numbered_apart(*file.layer)
                                 ? fmt::format("model/mtp/{:03}", file.layer->value - kFirstMtpLayer)
                                 : fmt::format("model/layers/{:03}", file.layer->value);
  if (file.experts.empty()) return folder + "/dense.safetensors";
  if (grouping.kind == Grouping::Kind::layer) return folder + "/experts.safetensors";
  const uint32_t first = file.experts.front().expert.value;
  const uint32_t last = file.experts.back().expert.value;
  if (first == last) return fmt::format("{}/experts/{:03}.safetensors", folder, first);
  return fmt::format("{}/experts/{:03}-{:03}.safetensors", folder, first, last);
}

std::vector<Placement> place_by_layer(const Grouping& grouping, const Checkpoint& source) {
  std::map<FileKey, Placement> files;
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    if (source.tensors()[i].is_alias) continue;
    const TensorName& name = source.tensors()[i].place;
    const FileKey key = file_key(name, grouping);
    Placement& file = files[key];
    file.part = key.part;
    file.layer = key.layer;
    file.tensors.push_back({.tensor = i, .unit = name.expert ? name.expert->value : 0});
  }
  for (const auto& [expert, unused] : source.experts()) {
    files.at({.part = "expert", .layer = expert.layer, .group = group_of(expert.expert, grouping)})
        .experts.push_back(expert);
  }
  std::vector<Placement> placed;
  for (auto& [key, file] : files) {
    file.path = path_of(file, grouping);
    placed.push_back(std::move(file));
  }
  return placed;
}

// Shards -------------------------------------------------------------------------------------------------------------

/// Identifies tensors that are kept in one file: an expert, or a tensor with its scales. Ordered as the model uses
/// them.
struct UnitKey {
  int section = 0;  // embedding, layers, head, other
  std::optional<LayerId> layer;
  std::optional<ExpertId> expert;  // nullopt: needed by each token, before the experts
  std::string_view name;           // the weight's; empty for an expert
  auto operator<=>(const UnitKey&) const = default;
};

/// Scale tensor -> the weight that it belongs to.
std::unordered_map<std::string_view, std::string_view> weights_of_scales(const Checkpoint& source) {
  std::unordered_map<std::string_view, std::string_view> weights;
  for (const TensorEntry& tensor : source.tensors()) {
    if (tensor.place.expert) continue;  // an expert is kept together anyway
    for (const std::string& name : scale_names(tensor.name)) {
      if (const TensorEntry* scale = source.find(name)) weights.emplace(scale->name, tensor.name);
    }
  }
  return weights;
}

UnitKey unit_key(const TensorEntry& tensor, const std::unordered_map<std::string_view, std::string_view>& weights) {
  const TensorName& place = tensor.place;
  UnitKey key{.section = 3, .layer = place.layer, .expert = place.expert, .name = {}};
  if (place.role == Role::embed) key.section = 0;
  if (place.layer) key.section = 1;
  if (place.role == Role::head) key.section = 2;
  if (place.expert) return key;
  const auto weight = weights.find(tensor.name);
  key.name = weight == weights.end() ? std::string_view(tensor.name) : weight->second;
  return key;
}

/// An upper bound of a file's bytes, header included, known before its tensors are laid out.
class FileSizeBound {
 public:
  void add(const TensorEntry& tensor) {
    constexpr uint64_t kLongest = UINT64_MAX;
    const Json entry = {
        {tensor.name,
         {{"dtype", to_string(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {kLongest, kLongest}}}}};
    header_bytes_ += canonical_json(entry).size();
    data_bytes_ += tensor.range.size();
  }
  [[nodiscard]] uint64_t bytes() const { return round_up(header_bytes_, kPageBytes) + data_bytes_; }

 private:
  static constexpr uint64_t kLengthAndMetadata = 64;
  uint64_t header_bytes_ = kLengthAndMetadata;
  uint64_t data_bytes_ = 0;
};

std::vector<Placement> place_by_size(uint64_t limit_bytes, const Checkpoint& source) {
  const auto weights = weights_of_scales(source);
  std::map<UnitKey, std::vector<uint32_t>> units;
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    if (!source.tensors()[i].is_alias) units[unit_key(source.tensors()[i], weights)].push_back(i);
  }

  std::vector<Placement> shards(1);
  FileSizeBound size;
  uint32_t number = 0;
  for (const auto& [key, tensors] : units) {
    FileSizeBound with = size;
    for (const uint32_t tensor : tensors)
      with.add(source.tensors()[tensor]);
    if (with.bytes() > limit_bytes && !shards.back().tensors.empty()) {
      shards.emplace_back();
      with = {};
      for (const uint32_t tensor : tensors)
        with.add(source.tensors()[tensor]);
    }
    size = with;
    for (const uint32_t tensor : tensors)
      shards.back().tensors.push_back({.tensor = tensor, .unit = number});
    if (key.expert) shards.back().experts.push_back({*key.layer, *key.expert});
    ++number;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].part = "shard";
    shards[i].path = fmt::format("model/model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

}  // namespace

std::vector<Placement> place_tensors(const Grouping& grouping, const Checkpoint& source) {
  std::vector<Placement> files = grouping.kind == Grouping::Kind::shard ? place_by_size(grouping.shard_bytes, source)
                                                                        : place_by_layer(grouping, source);
  std::sort(files.begin(), files.end(), [](const Placement& a, const Placement& b) { return a.path < b.path; });
  return files;
}

}  // namespace dspack::format
