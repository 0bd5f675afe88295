#include "format/checkpoint.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/base/checked.h"
#include "format/base/parallel.h"
#include "format/fused_experts.h"
#include "format/index.h"
#include "format/unknown_experts.h"

namespace dspack::format {
namespace {

// V3's manifest is about 15 MB, its index 9 MB; what is far beyond is not a file of this kind.
constexpr uint64_t kMaxManifestBytes = 512ULL << 20;
constexpr uint64_t kMaxIndexBytes = 256ULL << 20;
// 4 EiB: no disk holds it, and sums of sizes below it cannot overflow.
constexpr uint64_t kMaxTotalBytes = 1ULL << 62;

/// How an ordinary checkpoint's files are called.
struct ShardNames {
  const char* index;
  const char* single;  // where one file needs no index
};
// The second are Mistral's; where a repository has both, the first have the names that other programs know.
constexpr ShardNames kShardNames[] = {{kIndexPath, "model.safetensors"},
                                      {kConsolidatedIndexPath, "consolidated.safetensors"}};

struct Shard {
  CheckpointFile file;
  SafetensorsHeader header;
};

Result<Shard> read_shard(Repository& repository, const std::string& path, const std::stop_token& stop) {
  TRY_ASSIGN(const auto source, repository.open(path, stop));
  Shard shard{
      {.path = path, .size_bytes = source->size_bytes(), .data_start = 0, .version = source->version(), .header = {}},
      {}};
  const auto read = [&](uint64_t offset, uint64_t bytes) -> Result<std::string> {
    std::string text(bytes, '\0');
    TRY(source->read(offset, std::as_writable_bytes(std::span(text)), stop));
    return text;
  };
  TRY_ASSIGN(const std::string first, read(0, std::min<uint64_t>(8, source->size_bytes())));
  auto length = parse_header_length(first, source->size_bytes());
  if (!length) return length.error().in(repository.locate(path));
  TRY_ASSIGN(const std::string json, read(8, *length));
  auto header = parse_header(json, source->size_bytes());
  if (!header) return header.error().in(repository.locate(path));
  shard.header = std::move(header).value();
  shard.file.data_start = shard.header.data_start;
  shard.file.header = first + json;
  return shard;
}

}  // namespace

/// Fills a Checkpoint and holds its rules: names are unique, experts are found by their key.
class CheckpointBuilder {
 public:
  Result<void> add_shard(Shard shard, const FusedExperts& fused) {
    TRY(count(shard.file.size_bytes, shard.file.path));
    for (TensorInfo& tensor : shard.header.tensors) {
      auto slices = fused.split(tensor);
      if (!slices) {
        TRY(add_stored(std::move(tensor), shard));
        continue;
      }
      checkpoint_.fused_.push_back({.name = std::move(tensor.name),
                                    .file = narrow<uint32_t>(checkpoint_.files_.size()),
                                    .first = narrow<uint32_t>(checkpoint_.tensors_.size()),
                                    .slices = narrow<uint32_t>(slices->size())});
      for (TensorInfo& slice : *slices)
        TRY(add_stored(std::move(slice), shard));
    }
    checkpoint_.files_.push_back(std::move(shard.file));
    return {};
  }

  Result<void> add_packed(const PackedFile& packed, const Layout& layout) {
    TRY(count(packed.size_bytes, packed.path));
    const auto file = narrow<uint32_t>(checkpoint_.files_.size());
    const size_t first = checkpoint_.tensors_.size();
    for (size_t i = 0; i < layout.tensors.size(); ++i) {
      const LayoutTensor& tensor = layout.tensors[i];
      TensorEntry entry{.name = tensor_name(packed, tensor),
                        .place = {},
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .file = file,
                        .range = {packed.data_start + tensor.data.begin, packed.data_start + tensor.data.end},
                        .digest = packed.tensors[i]};
      TRY(add(std::move(entry), packed.path));
    }
    checkpoint_.files_.push_back({.path = packed.path,
                                  .size_bytes = packed.size_bytes,
                                  .data_start = packed.data_start,
                                  .version = {},
                                  .header = {}});
    return check_experts(packed, std::span(checkpoint_.tensors_).subspan(first));
  }

  /// Compares what the index promises with what the shards hold.
  Result<void> check_index(const Index& index) {
    std::unordered_map<std::string_view, uint32_t> fused;  // name -> file
    for (const FusedTensor& tensor : checkpoint_.fused_)
      fused.emplace(tensor.name, tensor.file);
    for (const auto& [name, number] : index.weight_map) {
      const std::string& path = index.files[number];
      const TensorEntry* entry = checkpoint_.find(name);
      const auto whole = entry == nullptr ? fused.find(name) : fused.end();
      const bool found = entry != nullptr || whole != fused.end();
      if (!found || checkpoint_.files_[entry != nullptr ? entry->file : whole->second].path != path) {
        return Error{ErrorKind::invalid,
                     fmt::format("tensor \"{}\" should be in {}, which does not hold it", name, path)};
      }
    }
    size_t next_fused = 0;
    for (size_t i = 0; i < checkpoint_.tensors_.size(); ++i) {
      const bool sliced = next_fused < checkpoint_.fused_.size() && checkpoint_.fused_[next_fused].first == i;
      const std::string& name = sliced ? checkpoint_.fused_[next_fused].name : checkpoint_.tensors_[i].name;
      if (!index.weight_map.contains(name)) {
        checkpoint_.warnings_.push_back(fmt::format("{}: tensor \"{}\" is not in the index; it is kept",
                                                    checkpoint_.files_[checkpoint_.tensors_[i].file].path, name));
      }
      if (sliced) i += checkpoint_.fused_[next_fused++].slices - 1;
    }
    return {};
  }

  /// A tensor that is in no file.
  Result<void> add_made(TensorEntry entry) {
    TRY(count(entry.range.size(), entry.name));
    const auto [known, added] = checkpoint_.by_name_.emplace(entry.name, narrow<uint32_t>(checkpoint_.tensors_.size()));
    if (!added) return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" would be made twice", entry.name)};
    checkpoint_.tensors_.push_back(std::move(entry));
    return {};
  }

  void doubt_experts(std::optional<std::string> doubt) {
    if (!doubt) return;
    checkpoint_.warnings_.push_back(*doubt);
    checkpoint_.expert_doubts_.push_back(std::move(*doubt));
  }
  [[nodiscard]] std::span<const TensorEntry> tensors() const { return checkpoint_.tensors_; }

  Checkpoint finish() {
    for (uint32_t i = 0; i < checkpoint_.tensors_.size(); ++i) {
      const TensorName& place = checkpoint_.tensors_[i].place;
      if (place.expert) checkpoint_.experts_[{*place.layer, *place.expert}].push_back(i);
    }
    for (auto& [key, tensors] : checkpoint_.experts_) {
      std::sort(tensors.begin(), tensors.end(),
                [this](uint32_t a, uint32_t b) { return checkpoint_.tensors_[a].name < checkpoint_.tensors_[b].name; });
    }
    return std::move(checkpoint_);
  }

  Result<void> set_manifest(Manifest manifest) {
    size_t tensors = 0;
    for (const PackedFile& file : manifest.files)
      tensors += manifest.layouts[file.layout].tensors.size();
    checkpoint_.tensors_.reserve(tensors);
    checkpoint_.by_name_.reserve(tensors);
    for (const PackedFile& file : manifest.files)
      TRY(add_packed(file, manifest.layouts[file.layout]));
    for (const auto& [name, target] : manifest.aliases)
      TRY(add_alias(name, target));
    checkpoint_.manifest_ = std::move(manifest);
    return {};
  }

 private:
  /// A file lists exactly the experts that it holds, or their digests would say nothing about them.
  static Result<void> check_experts(const PackedFile& packed, std::span<const TensorEntry> tensors) {
    std::vector<bool> present(packed.experts.size());
    for (const TensorEntry& tensor : tensors) {
      if (!tensor.place.expert) continue;
      const auto expert = find_expert(packed, {*tensor.place.layer, *tensor.place.expert});
      if (!expert) {
        return Error{ErrorKind::invalid, fmt::format("{}: tensor \"{}\" is of an expert that the file does not list",
                                                     packed.path, tensor.name)};
      }
      present[*expert] = true;
    }
    const auto missing = std::find(present.begin(), present.end(), false);
    if (missing == present.end()) return {};
    const ExpertKey key = packed.experts[static_cast<size_t>(missing - present.begin())].key;
    return Error{ErrorKind::invalid, fmt::format("{}: lists layer {}, expert {} and holds none of its tensors",
                                                 packed.path, layer_text(key.layer), key.expert.value)};
  }

  Result<void> add_alias(const std::string& name, const std::string& target) {
    const auto found = checkpoint_.by_name_.find(target);
    if (found == checkpoint_.by_name_.end() || checkpoint_.tensors_[found->second].is_alias) {
      return Error{ErrorKind::invalid,
                   fmt::format("alias \"{}\" stands for \"{}\", which no file holds", name, target)};
    }
    TensorEntry entry = checkpoint_.tensors_[found->second];
    if (entry.place.expert) {
      return Error{ErrorKind::invalid, fmt::format("alias \"{}\" stands for a tensor of an expert", name)};
    }
    entry.name = name;
    entry.is_alias = true;
    const std::string& path = checkpoint_.files_[entry.file].path;
    return add(std::move(entry), path);
  }

  Result<void> count(uint64_t size_bytes, const std::string& path) {
    const std::optional<uint64_t> total = checked_add(total_bytes_, size_bytes);
    if (!total || *total > kMaxTotalBytes) {
      return Error{ErrorKind::invalid,
                   fmt::format("{}: claims {} bytes, which is no size of a file", path, size_bytes)};
    }
    total_bytes_ = *total;
    return {};
  }

  /// A tensor, or a slice of one, of the shard that is being added.
  Result<void> add_stored(TensorInfo tensor, const Shard& shard) {
    const uint64_t start = shard.header.data_start;
    TensorEntry entry{.name = std::move(tensor.name),
                      .place = {},
                      .dtype = tensor.dtype,
                      .shape = std::move(tensor.shape),
                      .file = narrow<uint32_t>(checkpoint_.files_.size()),
                      .range = {start + tensor.data.begin, start + tensor.data.end},
                      .digest = {}};
    return add(std::move(entry), shard.file.path);
  }

  Result<void> add(TensorEntry entry, const std::string& path) {
    const auto number = narrow<uint32_t>(checkpoint_.tensors_.size());
    const auto [known, added] = checkpoint_.by_name_.emplace(entry.name, number);
    if (!added) {
      // A shard that the loop has not pushed yet is the one being added now.
      const uint32_t other = checkpoint_.tensors_[known->second].file;
      const std::string& first = other < checkpoint_.files_.size() ? checkpoint_.files_[other].path : path;
      return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" is in both {} and {}", entry.name, first, path)};
    }
    entry.place = parse_tensor_name(entry.name);
    checkpoint_.tensors_.push_back(std::move(entry));
    return {};
  }

  Checkpoint checkpoint_;
  uint64_t total_bytes_ = 0;
};

namespace {

Result<Checkpoint> open_packed(std::string_view text) {
  TRY_ASSIGN(Manifest manifest, parse_manifest(text));
  CheckpointBuilder builder;
  TRY(builder.set_manifest(std::move(manifest)));
  return builder.finish();
}

/// `index`, at `index_path`, or nullptr for files that need none.
Result<Checkpoint> open_shards(Repository& repository, const std::vector<std::string>& paths, const Index* index,
                               const char* index_path, unsigned jobs, const std::stop_token& stop) {
  std::vector<std::optional<Shard>> shards(paths.size());
  const auto read_one = [&](uint64_t number, const std::stop_token& stop_one) -> Result<void> {
    auto shard = read_shard(repository, paths[number], stop_one);
    if (!shard && shard.error().kind == ErrorKind::not_found && index != nullptr) {
      return Error{ErrorKind::not_found,
                   fmt::format("{} names a shard that is missing: {}", index_path, shard.error().message)};
    }
    if (!shard) return shard.error();
    shards[number] = std::move(shard).value();
    return {};
  };
  TRY(run_jobs(paths.size(), jobs, read_one, stop));
  std::vector<std::span<const TensorInfo>> stored;
  stored.reserve(shards.size());
  for (const std::optional<Shard>& shard : shards)
    stored.emplace_back(shard->header.tensors);
  const FusedExperts fused(stored);
  CheckpointBuilder builder;
  for (std::optional<Shard>& shard : shards)
    if (const auto added = builder.add_shard(std::move(*shard), fused); !added.has_value())
      return added.error().in(repository.description());
  if (index != nullptr) {
    if (const auto fits = builder.check_index(*index); !fits) return fits.error().in(repository.locate(index_path));
  }
  builder.doubt_experts(fused.warning());
  builder.doubt_experts(unknown_experts(builder.tensors()));
  return builder.finish();
}

/// nullopt: neither the index nor the single file is there.
Result<std::optional<Checkpoint>> open_ordinary(Repository& repository, const ShardNames& names, unsigned jobs,
                                                const std::stop_token& stop) {
  auto index_text = repository.read_text(names.index, kMaxIndexBytes, stop);
  if (index_text) {
    auto index = parse_index(*index_text);
    if (!index) return index.error().in(repository.locate(names.index));
    *index_text = std::string();  // V3's is 9 MB: not to be held while the shards are read
    TRY_ASSIGN(Checkpoint opened, open_shards(repository, index->files, &*index, names.index, jobs, stop));
    return std::optional(std::move(opened));
  }
  if (index_text.error().kind != ErrorKind::not_found) return index_text.error();
  auto single = open_shards(repository, {names.single}, nullptr, names.index, jobs, stop);
  if (!single && single.error().kind == ErrorKind::not_found) return std::optional<Checkpoint>();
  if (!single) return single.error();
  return std::optional(std::move(single).value());
}

Error no_checkpoint(Repository& repository, const std::stop_token& stop) {
  if (repository.kind() == RepositoryKind::local && repository.read_text(".reshard/journal", kMaxManifestBytes, stop)) {
    return {ErrorKind::conflict,
            fmt::format("{}: an unfinished packed repository; run the same reshard command again to complete it",
                        repository.description())};
  }
  return {ErrorKind::not_found,
          fmt::format("{}: not a checkpoint: it has none of {}, {} and {}, nor a {}", repository.description(),
                      kManifestPath, kIndexPath, kShardNames[0].single, kConsolidatedIndexPath)};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(Repository& repository, unsigned jobs, const std::stop_token& stop) {
  auto manifest = repository.read_text(kManifestPath, kMaxManifestBytes, stop);
  if (manifest) {
    auto packed = open_packed(*manifest);
    if (!packed) return packed.error().in(repository.locate(kManifestPath));
    return packed;
  }
  if (manifest.error().kind != ErrorKind::not_found) return manifest.error();
  for (const ShardNames& names : kShardNames) {
    auto opened = open_ordinary(repository, names, jobs, stop);
    if (!opened) return opened.error();
    if (*opened) return std::move(**opened);
  }
  return no_checkpoint(repository, stop);
}

Result<Checkpoint> Checkpoint::of(std::vector<TensorEntry> tensors) {
  CheckpointBuilder builder;
  for (TensorEntry& tensor : tensors)
    TRY(builder.add_made(std::move(tensor)));
  return builder.finish();
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const uint32_t> Checkpoint::expert(ExpertKey key) const {
  const auto found = experts_.find(key);
  if (found == experts_.end()) return {};
  return found->second;
}

std::vector<Extent> Checkpoint::expert_extents(ExpertKey key) const {
  std::vector<Extent> parts;
  for (const uint32_t tensor : expert(key))
    parts.push_back({tensors_[tensor].file, tensors_[tensor].range});
  std::sort(parts.begin(), parts.end());
  std::vector<Extent> extents;
  for (const Extent& part : parts) {
    const bool adjacent =
        !extents.empty() && extents.back().file == part.file && extents.back().range.end == part.range.begin;
    if (adjacent) {
      extents.back().range.end = part.range.end;
    } else {
      extents.push_back(part);
    }
  }
  return extents;
}

uint64_t Checkpoint::payload_bytes() const {
  uint64_t bytes = 0;
  for (const TensorEntry& tensor : tensors_)
    bytes += tensor.range.size();
  return bytes;
}

}  // namespace dspack::format
