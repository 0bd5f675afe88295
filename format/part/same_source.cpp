#include "format/part/same_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace dspack::format {
namespace {

// Together at most 4 MiB: little beside what is going to be fetched. A model that was trained further has changed some
// of sixteen norms, router biases or scales.
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

/// Two parts may have no tensor in common: then their commits must speak for them, where they have some.
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

}  // namespace dspack::format
