#include "format/part/completion.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/size.h"
#include "format/checkpoint_builder.h"
#include "format/kept_headers.h"

namespace dspack::format {
namespace {

// Together at most 4 MiB: little compared to what will be fetched. Further training changes some of sixteen norms,
// router biases or scales.
constexpr size_t kWitnesses = 16;
constexpr uint64_t kMaxWitnessBytes = 256ULL << 10;

Error differs(std::string_view path, std::string_view how) {
  return {ErrorKind::invalid, fmt::format("its {} {}", path, how)};
}

Result<void> compare_digests(const SourceShard& shard, const std::optional<Digest>& there) {
  if (!shard.sha256 || !there || *shard.sha256 == *there) return {};
  return differs(shard.path, fmt::format("has SHA-256 {}, and that of the part's source was {}", to_hex(*there),
                                         to_hex(*shard.sha256)));
}

Result<void> compare_sizes(const SourceShard& shard, uint64_t there) {
  if (shard.size_bytes == there) return {};
  return differs(shard.path, fmt::format("has {} bytes, and that of the part's source {}", there, shard.size_bytes));
}

const CompanionFile* kept_headers_of(const Manifest& manifest) {
  const auto found = std::ranges::find(manifest.companions, kHeadersPath, &CompanionFile::path);
  return found == manifest.companions.end() ? nullptr : &*found;
}

Result<void> compare_manifests(const Manifest& part, const Manifest& other) {
  std::map<std::string_view, const SourceShard*> there;
  for (const SourceShard& shard : other.source)
    there.emplace(shard.path, &shard);
  for (const SourceShard& shard : part.source) {
    const auto found = there.find(shard.path);
    if (found == there.end()) return differs("source", fmt::format("had no {}, as the part's had", shard.path));
    TRY(compare_sizes(shard, found->second->size_bytes));
    TRY(compare_digests(shard, found->second->sha256));
  }
  if (part.source.size() != other.source.size()) return differs("source", "had more shards than the part's");
  const CompanionFile* ours = kept_headers_of(part);
  const CompanionFile* theirs = kept_headers_of(other);
  if (ours != nullptr && theirs != nullptr && ours->sha256 == theirs->sha256) return {};
  return differs(kHeadersPath, "does not have the headers of the part's source");
}

/// Two parts may have no tensor in common: then their commits must be the same, if both have one.
Result<void> compare_commits(const Checkpoint& part, const Checkpoint& other) {
  const Origin& ours = part.manifest()->origin;
  const Origin& theirs = other.manifest()->origin;
  if (ours.revision.empty() || theirs.revision.empty() || ours.revision == theirs.revision) return {};
  if (!witnesses(part, other).empty()) return {};
  return differs("source",
                 fmt::format("was {}@{} and the part's {}@{}, and the two have no small tensor in common that "
                             "could show whether these are the same",
                             theirs.repository, theirs.revision, ours.repository, ours.revision));
}

}  // namespace

Result<void> compare_sources(const Checkpoint& part, const Json& kept_headers, const Checkpoint& other,
                             bool versions_are_digests) {
  const Manifest& manifest = *part.manifest();
  if (other.manifest()) {
    TRY(compare_manifests(manifest, *other.manifest()));
    return compare_commits(part, other);
  }
  std::map<std::string_view, const CheckpointFile*> there;
  for (const CheckpointFile& file : other.files())
    there.emplace(file.path, &file);
  for (const SourceShard& shard : manifest.source) {
    const auto found = there.find(shard.path);
    if (found == there.end()) {
      return Error{ErrorKind::invalid, fmt::format("it has no {}, of which the part was made", shard.path)};
    }
    const CheckpointFile& file = *found->second;
    TRY(compare_sizes(shard, file.size_bytes));
    const auto header = kept_headers.find(shard.path);
    const bool is_kept = header != kept_headers.end() && header->is_string();
    if (!is_kept || header->get_ref<const std::string&>() != std::string_view(file.header).substr(8)) {
      return differs(shard.path, "has another header than that of the part's source");
    }
    if (versions_are_digests) TRY(compare_digests(shard, parse_digest(file.version)));
  }
  if (manifest.source.size() == other.files().size()) return {};
  return Error{ErrorKind::invalid, fmt::format("it has {} shards, and the part's source had {}", other.files().size(),
                                               manifest.source.size())};
}

std::vector<Witness> witnesses(const Checkpoint& part, const Checkpoint& other) {
  std::vector<Witness> of_no_expert;
  std::vector<Witness> of_experts;
  for (const TensorEntry& tensor : part.tensors()) {
    const TensorEntry* there = other.find(tensor.name);
    if (there == nullptr || !tensor.digest || tensor.range.size() == 0 || tensor.range.size() > kMaxWitnessBytes)
      continue;
    if (there->dtype != tensor.dtype || there->shape != tensor.shape) continue;
    (tensor.place.expert ? of_experts : of_no_expert)
        .push_back({.tensor = static_cast<uint32_t>(there - other.tensors().data()), .digest = *tensor.digest});
  }
  const std::vector<Witness>& from = of_no_expert.empty() ? of_experts : of_no_expert;
  std::vector<Witness> some;
  const size_t count = std::min(kWitnesses, from.size());
  for (size_t i = 0; i < count; ++i)
    some.push_back(from[i * from.size() / count]);
  return some;
}

namespace {

std::optional<ExpertKey> expert_of(const TensorEntry& tensor) {
  if (!tensor.place.expert) return std::nullopt;
  return ExpertKey{*tensor.place.layer, *tensor.place.expert};
}

bool has_transform(const Checkpoint& checkpoint) {
  return checkpoint.manifest() && checkpoint.manifest()->recipe.contains("transform");
}

std::string form_of(const TensorEntry& tensor) {
  return fmt::format("{} [{}]", to_string(tensor.dtype), fmt::join(tensor.shape, ", "));
}

class Completing {
 public:
  Completing(const Checkpoint& part, const Checkpoint& whole, std::optional<uint32_t> end_layer)
      : part_(part), whole_(whole), end_layer_(end_layer), may_differ_(has_transform(part) || has_transform(whole)) {}

  Result<Completion> complete() {
    TRY(compare());
    find_split_experts();
    take_from_part();
    take_from_whole();
    return finish();
  }

 private:
  /// Tensors in both must have the same form, unless a transform was applied.
  Result<void> compare() {
    for (const TensorEntry& tensor : part_.tensors()) {
      const TensorEntry* released = whole_.find(tensor.name);
      if (released == nullptr && !may_differ_ && !is_part(whole_)) {
        return Error{ErrorKind::invalid, fmt::format("it has no tensor {}, which the part holds", tensor.name)};
      }
      if (released == nullptr) continue;
      const bool is_converted = released->dtype != tensor.dtype;
      if (released->shape != tensor.shape || (is_converted && !may_differ_)) {
        return Error{ErrorKind::invalid, fmt::format("its {} is {} and that of the part {}", tensor.name,
                                                     form_of(*released), form_of(tensor))};
      }
      if (!is_converted || released->dtype != Dtype::f8_e4m3) continue;
      for (std::string& scale : scale_names(tensor.name))
        used_up_.insert(std::move(scale));
    }
    return {};
  }

  [[nodiscard]] bool is_lacking(const TensorEntry& tensor) const {
    if (end_layer_ && tensor.place.layer && tensor.place.layer->value >= *end_layer_) return false;
    return part_.find(tensor.name) == nullptr && !used_up_.contains(tensor.name);
  }

  void find_split_experts() {
    for (const auto& [key, tensors] : whole_.experts()) {
      if (part_.expert(key).empty()) continue;
      if (std::ranges::any_of(tensors, [&](uint32_t i) { return is_lacking(whole_.tensors()[i]); })) split_.insert(key);
    }
  }

  [[nodiscard]] bool is_split(const TensorEntry& tensor) const {
    const auto expert = expert_of(tensor);
    return expert && split_.contains(*expert);
  }

  void take_from_part() {
    files_ = part_.files();
    for (uint32_t i = 0; i < part_.tensors().size(); ++i) {
      if (!is_split(part_.tensors()[i])) take(part_.tensors()[i], i);
    }
  }

  void take_from_whole() {
    const auto first = narrow<uint32_t>(files_.size());
    for (const CheckpointFile& file : whole_.files()) {
      files_.push_back({.path = file.path,
                        .size_bytes = file.size_bytes,
                        .data_start = file.data_start,
                        .version = file.version,
                        .header = {}});  // 10 MB for V3, not needed here
    }
    for (uint32_t i = 0; i < whole_.tensors().size(); ++i) {
      TensorEntry tensor = whole_.tensors()[i];
      if (!is_lacking(tensor) && !is_split(tensor)) continue;
      tensor.file += first;
      take(std::move(tensor), i);
      absent_.push_back(i);
    }
  }

  void take(TensorEntry tensor, uint32_t own) {
    tensors_.push_back(std::move(tensor));
    own_.push_back(own);
  }

  Result<Completion> finish() {
    Manifest manifest = *part_.manifest();
    // If the whole is itself a part, tensors may still be missing.
    if (!is_part(whole_)) {
      if (manifest.coverage.of) static_cast<Extension&>(manifest.coverage) = *manifest.coverage.of;
      manifest.coverage.of.reset();
    }
    CheckpointBuilder builder;
    TRY(builder.add_known(std::move(files_), std::move(tensors_), std::move(manifest)));
    return Completion{.catalogue = builder.finish(), .own = std::move(own_), .absent = std::move(absent_)};
  }

  const Checkpoint& part_;
  const Checkpoint& whole_;
  std::optional<uint32_t> end_layer_;
  bool may_differ_;
  std::unordered_set<std::string> used_up_;  // scales of weights that the part has in another form
  std::set<ExpertKey> split_;                // experts of which the part has only some tensors
  std::vector<CheckpointFile> files_;
  std::vector<TensorEntry> tensors_;
  std::vector<uint32_t> own_;
  std::vector<uint32_t> absent_;
};

}  // namespace

bool is_part(const Checkpoint& checkpoint) {
  return checkpoint.manifest() && checkpoint.manifest()->coverage.of.has_value();
}

Result<Completion> complete(const Checkpoint& part, const Checkpoint& whole, std::optional<uint32_t> end_layer) {
  DSPACK_CHECK(is_part(part), "what is no part lacks nothing");
  return Completing(part, whole, end_layer).complete();
}

}  // namespace dspack::format
