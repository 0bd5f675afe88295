#include "format/packing/planned_file.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "format/base/check.h"
#include "format/safetensors.h"

namespace dspack::format {
namespace {

// A remote reader must fetch a block to trust one row: small compared to a round trip, large compared to a digest.
constexpr uint64_t kRowBlockBytes = 1 << 20;

/// Puts a file's tensors in order and computes every offset.
PlannedFile lay_out(Placement placed, const Checkpoint& source, std::span<const uint32_t> order) {
  std::vector<TensorInfo> infos;
  std::vector<uint32_t> units;
  std::unordered_map<std::string_view, uint32_t> by_name;
  for (const PlacedTensor& tensor : placed.tensors) {
    const TensorEntry& entry = source.tensors()[tensor.tensor];
    infos.push_back({entry.name, entry.dtype, entry.shape, {}});
    units.push_back(order.empty() ? tensor.unit : order[tensor.tensor]);
    by_name.emplace(entry.name, tensor.tensor);
  }
  arrange_tensors(infos, units);
  PlannedFile file{.path = std::move(placed.path),
                   .part = std::move(placed.part),
                   .layer = placed.layer,
                   .experts = std::move(placed.experts),
                   .tensors = {},
                   .offsets = {},
                   .data_start = write_header(infos).size(),
                   .size_bytes = 0};
  for (const TensorInfo& info : infos) {
    file.tensors.push_back(by_name.at(info.name));
    file.offsets.push_back(file.data_start + info.data.begin);
  }
  file.size_bytes = file.data_start + infos.back().data.end;
  return file;
}

}  // namespace

std::vector<uint32_t> reading_order(const std::vector<Extent>& origins) {
  std::vector<uint32_t> sorted(origins.size());
  std::iota(sorted.begin(), sorted.end(), uint32_t{0});
  std::ranges::stable_sort(sorted, [&](uint32_t a, uint32_t b) {
    if (origins[a].file != origins[b].file) return origins[a].file > origins[b].file;
    return origins[a].range < origins[b].range;
  });
  std::vector<uint32_t> order(origins.size());
  for (uint32_t i = 0; i < sorted.size(); ++i)
    order[sorted[i]] = i;
  return order;
}

std::vector<PlannedFile> plan_files(const Grouping& grouping, const Checkpoint& source,
                                    std::span<const uint32_t> order) {
  DSPACK_CHECK(order.empty() || order.size() == source.tensors().size(), "every tensor needs its place in the order");
  std::vector<PlannedFile> files;
  for (Placement& placed : place_tensors(grouping, source))
    files.push_back(lay_out(std::move(placed), source, order));
  return files;
}

std::string planned_header(const PlannedFile& file, const Checkpoint& source) {
  std::vector<TensorInfo> infos;
  for (size_t slot = 0; slot < file.tensors.size(); ++slot) {
    const TensorEntry& entry = source.tensors()[file.tensors[slot]];
    const uint64_t begin = file.offsets[slot] - file.data_start;
    infos.push_back({entry.name, entry.dtype, entry.shape, {begin, begin + entry.range.size()}});
  }
  return write_header(infos);
}

uint64_t rows_per_block(const TensorEntry& tensor) {
  if (tensor.place.role != Role::embed || tensor.shape.size() != 2 || tensor.shape[0] == 0) return 0;
  const uint64_t row_bytes = tensor.range.size() / tensor.shape[0];
  if (row_bytes == 0 || row_bytes * tensor.shape[0] != tensor.range.size()) return 0;
  return std::max<uint64_t>(1, kRowBlockBytes / row_bytes);
}

uint64_t row_block_bytes(const TensorEntry& tensor) {
  const uint64_t rows = rows_per_block(tensor);
  return rows == 0 ? 0 : rows * (tensor.range.size() / tensor.shape[0]);
}

}  // namespace dspack::format
