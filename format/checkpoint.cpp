#include "format/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <set>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/base/size.h"
#include "format/checkpoint_builder.h"
#include "format/foreign_file.h"
#include "format/fused_experts.h"
#include "format/index.h"
#include "format/json.h"

namespace dspack::format {
namespace {

constexpr uint64_t kLengthBytes = 8;  // every header is preceded by its length

/// File names of an ordinary checkpoint.
struct ShardNames {
  const char* index;
  const char* single;  // if one file needs no index
};
// The second are Mistral's; if a repository has both, the first win, since other programs know their names.
constexpr ShardNames kShardNames[] = {{kIndexPath, "model.safetensors"},
                                      {kConsolidatedIndexPath, "consolidated.safetensors"}};

/// Totals over the headers of a checkpoint, several of which are read at a time.
class HeaderTotals {
 public:
  /// Call before the text is read.
  Result<void> add_bytes(uint64_t bytes) {
    if (bytes_.fetch_add(bytes) + bytes <= kMaxHeadersBytes) return {};
    return Error{ErrorKind::budget, fmt::format("the checkpoint's headers come to more than {}, the most that is read",
                                                size_words(kMaxHeadersBytes))};
  }
  Result<void> add_tensors(uint64_t tensors) {
    if (tensors_.fetch_add(tensors) + tensors <= kMaxTensors) return {};
    return Error{ErrorKind::budget,
                 fmt::format("the checkpoint has more than {} tensors, the most that is read", kMaxTensors)};
  }
  [[nodiscard]] uint64_t tensors() const { return tensors_; }

 private:
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> tensors_{0};
};

/// Explains why a shard's header cannot be read, if its first bytes or a file beside it show why; otherwise `error`.
Error misread(Repository& repository, const std::string& path, ByteSource& source, Error error,
              const std::stop_token& stop) {
  std::string first(std::min<uint64_t>(kTellingBytes, source.size_bytes()), '\0');
  if (source.read(0, std::as_writable_bytes(std::span(first)), stop).has_value()) {
    if (const std::string_view kind = foreign_kind(first); !kind.empty())
      return Error{ErrorKind::invalid, fmt::format("{} {}", repository.locate(path), kind)};
  }
  // aria2 creates the file at full size and records in another file beside it which parts it has fetched.
  if (repository.kind() == RepositoryKind::local && repository.open(path + ".aria2", stop).has_value()) {
    return Error{ErrorKind::corrupt, fmt::format("{} is an unfinished download of aria2 ({}.aria2 is beside it); let "
                                                 "aria2 finish it",
                                                 repository.locate(path), path)};
  }
  return error.in(repository.locate(path));
}

Result<Shard> read_shard(Repository& repository, const std::string& path, HeaderTotals& totals,
                         const std::stop_token& stop) {
  TRY_ASSIGN(const auto source, repository.open(path, stop));
  Shard shard{{.path = path,
               .size_bytes = source->size_bytes(),
               .data_start = 0,
               .version = source->version(),
               .declared = source->declared(),
               .header = {}},
              {}};
  std::string& text = shard.file.header;
  /// Extends the text to its first `bytes` bytes.
  const auto read_until = [&](uint64_t bytes) -> Result<void> {
    const uint64_t known = text.size();
    text.resize(bytes);
    return source->read(known, std::as_writable_bytes(std::span(text).subspan(known)), stop);
  };
  TRY(read_until(std::min<uint64_t>(kLengthBytes, source->size_bytes())));
  const auto length = parse_header_length(text, source->size_bytes());
  if (!length) return misread(repository, path, *source, length.error(), stop);
  if (const auto counted = totals.add_bytes(*length); !counted) return counted.error().in(repository.locate(path));
  TRY(read_until(kLengthBytes + *length));
  auto header = parse_header(std::string_view(text).substr(kLengthBytes), source->size_bytes());
  if (!header) return misread(repository, path, *source, header.error(), stop);
  if (const auto counted = totals.add_tensors(header->tensors.size()); !counted)
    return counted.error().in(repository.locate(path));
  shard.header = std::move(header).value();
  shard.file.data_start = shard.header.data_start;
  return shard;
}

Result<Checkpoint> open_packed(std::string_view text) {
  TRY_ASSIGN(Manifest manifest, parse_manifest(text));
  CheckpointBuilder builder;
  TRY(builder.set_manifest(std::move(manifest)));
  return builder.finish();
}

/// Tensors of the shards that an index leaves out.
struct LeftOut {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

/// Removes tensors that the index does not name, or assigns to another file: the index decides, as in transformers,
/// vLLM and SGLang. `path`: the shard's.
LeftOut leave_out(SafetensorsHeader& header, const std::string& path, const Index& index) {
  LeftOut left;
  std::erase_if(header.tensors, [&](const TensorInfo& tensor) {
    const auto named = index.weight_map.find(tensor.name);
    if (named != index.weight_map.end() && index.files[named->second] == path) return false;
    ++left.tensors;
    left.bytes += tensor.data.size();
    return true;
  });
  return left;
}

/// `index`, read from `index_path`; nullptr: the files need none.
Result<Checkpoint> open_shards(Repository& repository, const std::vector<std::string>& paths, const Index* index,
                               const char* index_path, unsigned jobs, const std::stop_token& stop, Progress* progress) {
  std::vector<std::optional<Shard>> shards(paths.size());
  if (progress != nullptr) progress->started({.what = "reading headers", .total_items = paths.size()});
  HeaderTotals totals;
  const auto read_one = [&](uint64_t number, const std::stop_token& stop_one) -> Result<void> {
    auto shard = read_shard(repository, paths[number], totals, stop_one);
    if (!shard && shard.error().kind == ErrorKind::not_found && index != nullptr) {
      return Error{ErrorKind::not_found, fmt::format("{} names a shard that is missing: {}{}", index_path,
                                                     shard.error().message, kFetchAgain)};
    }
    if (!shard) return shard.error();
    shards[number] = std::move(shard).value();
    if (progress != nullptr) progress->item_done();
    return {};
  };
  TRY(run_jobs(paths.size(), jobs, read_one, stop));
  LeftOut left;
  for (size_t i = 0; index != nullptr && i < shards.size(); ++i) {
    const LeftOut of_shard = leave_out(shards[i]->header, paths[i], *index);
    left.tensors += of_shard.tensors;
    left.bytes = saturating_add(left.bytes, of_shard.bytes);
  }
  std::vector<std::span<const TensorInfo>> stored;
  stored.reserve(shards.size());
  for (const std::optional<Shard>& shard : shards)
    stored.emplace_back(shard->header.tensors);
  const FusedExperts fused(stored);
  CheckpointBuilder builder;
  builder.expect(totals.tensors());
  for (std::optional<Shard>& shard : shards)
    if (const auto added = builder.add_shard(std::move(*shard), fused); !added.has_value())
      return added.error().in(repository.description());
  if (index != nullptr) {
    if (const auto fits = builder.check_index(*index); !fits) return fits.error().in(repository.locate(index_path));
  }
  if (left.tensors > 0) {
    builder.warn(fmt::format("{} tensor{} of the shards, {}, {} not read: {} names {} in another shard, or not at all",
                             left.tensors, left.tensors == 1 ? "" : "s", size_words(left.bytes),
                             left.tensors == 1 ? "is" : "are", index_path, left.tensors == 1 ? "it" : "them"));
  }
  builder.doubt_experts(fused.warning());
  builder.doubt_experts(unknown_experts(builder.tensors()));
  return builder.finish();
}

/// nullopt: neither the index nor the single file exists.
Result<std::optional<Checkpoint>> open_ordinary(Repository& repository, const ShardNames& names, unsigned jobs,
                                                const std::stop_token& stop, Progress* progress) {
  auto index_text = repository.read_text(names.index, kIndexDocument.bytes, stop);
  if (index_text) {
    auto index = parse_index(*index_text);
    if (!index) return index.error().in(repository.locate(names.index));
    *index_text = std::string();  // frees V3's 9 MB before the shards are read
    TRY_ASSIGN(Checkpoint opened, open_shards(repository, index->files, &*index, names.index, jobs, stop, progress));
    return std::optional(std::move(opened));
  }
  if (index_text.error().kind != ErrorKind::not_found) return index_text.error();
  auto single = open_shards(repository, {names.single}, nullptr, names.index, jobs, stop, progress);
  if (!single && single.error().kind == ErrorKind::not_found) return std::optional<Checkpoint>();
  if (!single) return single.error();
  return std::optional(std::move(single).value());
}

/// Files by which to recognise other kinds of checkpoints that users try.
struct OtherForm {
  const char* file;
  const char* meaning;
};
constexpr char kPickles[] =
    "holds pickles of PyTorch, which can run code and are not read: convert the checkpoint to safetensors";
constexpr OtherForm kOtherForms[] = {
    {"adapter_config.json",
     "says that this is an adapter, not a model: merge it into its base model (in PEFT, "
     "merge_and_unload) and name the folder of the result"},
    {"pytorch_model.bin.index.json", kPickles},
    {"pytorch_model.bin", kPickles},
};

/// The first file of a local folder that is one of several shards ("model-00001-of-00163.safetensors").
std::optional<std::string> shard_without_index(Repository& repository, const std::stop_token& stop) {
  if (repository.kind() != RepositoryKind::local) return std::nullopt;
  const auto files = repository.list(stop);
  if (!files || !*files) return std::nullopt;
  for (const ListedFile& file : **files) {
    const bool is_shard = file.path.starts_with("model-") && file.path.ends_with(".safetensors");
    if (is_shard && file.path.find("-of-") != std::string::npos) return file.path;
  }
  return std::nullopt;
}

Error no_checkpoint(Repository& repository, const std::stop_token& stop) {
  if (repository.kind() == RepositoryKind::local &&
      repository.read_text(".reshard/journal", kManifestDocument.bytes, stop)) {
    return {ErrorKind::conflict,
            fmt::format("{}: an unfinished packed repository; run the same reshard command again to complete it",
                        repository.description())};
  }
  if (const auto shard = shard_without_index(repository, stop)) {
    return {ErrorKind::not_found, fmt::format("{}: {} is missing, though {} is there{}", repository.description(),
                                              kIndexPath, *shard, kFetchAgain)};
  }
  for (const OtherForm& other : kOtherForms) {
    if (repository.open(other.file, stop).has_value())
      return {ErrorKind::unsupported, fmt::format("{}: {} {}", repository.description(), other.file, other.meaning)};
  }
  return {ErrorKind::not_found,
          fmt::format("{}: not a checkpoint: it has none of {}, {} and {}, nor a {}", repository.description(),
                      kManifestPath, kIndexPath, kShardNames[0].single, kConsolidatedIndexPath)};
}

// Finds what a checkpoint seems to have lost. Experts and layers of one model are alike, so one that lacks a tensor
// which all others have is most likely damaged (a shard that was not saved, an incomplete download). The findings are
// messages for people and decide nothing.

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

/// One sentence per kind of loss, naming the first: an expert lacks a tensor that its layer's other experts have; a
/// layer has fewer experts than the largest expert number implies; the layer numbers have a gap; a layer with experts
/// lacks a tensor that all other such layers have. Empty: nothing seems lost.
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

}  // namespace

Result<std::unique_ptr<ByteSource>> open_catalogued(Repository& repository, const CheckpointFile& file,
                                                    std::stop_token stop) {
  const KnownFile known{.size_bytes = file.size_bytes, .version = file.version};
  TRY_ASSIGN(auto source, repository.open_known(file.path, known, std::move(stop)));
  TRY(check_known(known, source->size_bytes(), source->version(), repository.locate(file.path)));
  return source;
}

void Checkpoint::warn_of_losses() {
  for (std::string& loss : missing_parts(*this))
    warnings_.push_back(std::move(loss));
}

Result<Checkpoint> Checkpoint::open(Repository& repository, unsigned jobs, const std::stop_token& stop,
                                    Progress* progress) {
  auto manifest = repository.read_text(kManifestPath, kManifestDocument.bytes, stop);
  if (manifest) {
    auto packed = open_packed(*manifest);
    if (!packed) return packed.error().in(repository.locate(kManifestPath));
    if (!packed->manifest_->coverage.of) packed->warn_of_losses();
    return packed;
  }
  if (manifest.error().kind != ErrorKind::not_found) return manifest.error();
  for (const ShardNames& names : kShardNames) {
    auto opened = open_ordinary(repository, names, jobs, stop, progress);
    if (!opened) return opened.error();
    if (!*opened) continue;
    (*opened)->warn_of_losses();
    return std::move(**opened);
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
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const TensorEntry* Checkpoint::find_matrix(std::string_view name) const {
  if (const TensorEntry* stored = find(name)) return stored;
  if (const auto found = as_layers_.find(name); found != as_layers_.end()) return &tensors_[found->second];
  const auto within = within_by_name_.find(name);
  return within == within_by_name_.end() ? nullptr : &within_[within->second];
}

void Checkpoint::place_modules(uint32_t layers) {
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    std::optional<LayerId>& layer = tensors_[i].place.layer;
    if (!layer || !is_numbered_apart(*layer)) continue;
    as_layers_.emplace(name_behind(tensors_[i].name, layers), i);
    layer = layer_behind(*layer, layers);
  }
  while (!experts_.empty() && is_numbered_apart(experts_.rbegin()->first.layer)) {
    auto module = experts_.extract(std::prev(experts_.end()));
    module.key().layer = layer_behind(module.key().layer, layers);
    experts_.insert(std::move(module));  // if both exist, the one numbered as a layer wins
  }
}

const TensorEntry* Checkpoint::find_scale(std::string_view weight_name) const {
  const bool is_within = find(weight_name) == nullptr;
  for (size_t i = 0; const auto name = scale_name(weight_name, i); ++i) {
    if (const TensorEntry* found = is_within ? find_matrix(*name) : find(*name)) return found;
  }
  return nullptr;
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
