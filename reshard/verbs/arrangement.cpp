#include "reshard/verbs/arrangement.h"

#include <algorithm>
#include <numeric>

namespace dspack::reshard {
namespace {

/// Puts a file's tensors in the order of their offsets.
void sort_tensors(ArrangedFile& file, const format::Checkpoint& checkpoint) {
  std::vector<size_t> order(file.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Tensors of no bytes share their offset with others: the end decides between them.
  const auto end = [&](size_t i) { return file.offsets[i] + checkpoint.tensors()[file.tensors[i]].range.size(); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(file.offsets[a], end(a), file.tensors[a]) < std::tuple(file.offsets[b], end(b), file.tensors[b]);
  });
  ArrangedFile sorted{file.path, file.size_bytes, file.data_start, {}, {}};
  for (const size_t i : order) {
    sorted.tensors.push_back(file.tensors[i]);
    sorted.offsets.push_back(file.offsets[i]);
  }
  file = std::move(sorted);
}

Arrangement sorted(Arrangement files, const format::Checkpoint& checkpoint) {
  for (ArrangedFile& file : files)
    sort_tensors(file, checkpoint);
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace

Arrangement present_arrangement(const format::Checkpoint& checkpoint) {
  Arrangement files;
  for (const format::CheckpointFile& file : checkpoint.files())
    files.push_back({file.path, file.size_bytes, file.data_start, {}, {}});
  for (uint32_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const format::TensorEntry& tensor = checkpoint.tensors()[i];
    files[tensor.file].tensors.push_back(i);
    files[tensor.file].offsets.push_back(tensor.range.begin);
  }
  return sorted(std::move(files), checkpoint);
}

Arrangement planned_arrangement(const format::Grouping& by, const format::Checkpoint& checkpoint) {
  Arrangement files;
  std::vector<format::Extent> origins;
  for (const format::TensorEntry& tensor : checkpoint.tensors())
    origins.push_back({tensor.file, tensor.range});
  for (format::PlannedFile& file : plan_files(by, checkpoint, format::reading_order(origins))) {
    files.push_back(
        {std::move(file.path), file.size_bytes, file.data_start, std::move(file.tensors), std::move(file.offsets)});
  }
  return sorted(std::move(files), checkpoint);
}

Arrangement source_arrangement(const std::vector<ShardImage>& shards, const format::Checkpoint& checkpoint) {
  Arrangement files;
  for (const ShardImage& shard : shards) {
    ArrangedFile file{shard.path, shard.size_bytes, shard.header.size(), shard.tensors, {}};
    uint64_t at = file.data_start;
    for (const uint32_t tensor : file.tensors) {
      file.offsets.push_back(at);
      at += checkpoint.tensors()[tensor].range.size();
    }
    files.push_back(std::move(file));
  }
  return sorted(std::move(files), checkpoint);
}

}  // namespace dspack::reshard
