#include "runtime/storage/joined_storage.h"

#include <algorithm>

#include "format/base/checked.h"

namespace dspack::runtime {

JoinedStorage::JoinedStorage(const format::Checkpoint& catalogue, std::vector<uint32_t> own,
                             std::unique_ptr<WeightStorage> part, std::unique_ptr<WeightStorage> rest)
    : catalogue_(catalogue),
      own_(std::move(own)),
      part_(std::move(part)),
      rest_(std::move(rest)),
      part_files_(narrow<uint32_t>(part_->checkpoint().files().size())) {}

WeightStorage& JoinedStorage::storage_of(ExpertKey expert) const {
  const std::span<const uint32_t> tensors = catalogue_.expert(expert);
  return tensors.empty() ? *part_ : storage_of(catalogue_.tensors()[tensors.front()].file);
}

const format::TensorEntry& JoinedStorage::own_entry(const format::TensorEntry& tensor) const {
  const auto number = static_cast<size_t>(&tensor - catalogue_.tensors().data());
  return storage_of(tensor.file).checkpoint().tensors()[own_[number]];
}

std::optional<format::Digest> JoinedStorage::digest_of(const format::TensorEntry& tensor) const {
  return storage_of(tensor.file).digest_of(own_entry(tensor));
}

Result<void> JoinedStorage::expect(std::span<const format::Extent> extents, const std::stop_token& stop) {
  std::vector<format::Extent> of_part;
  std::vector<format::Extent> of_rest;
  for (const format::Extent& extent : extents)
    (is_of_part(extent.file) ? of_part : of_rest).push_back({.file = own_file(extent.file), .range = extent.range});
  TRY(part_->expect(of_part, stop));
  return rest_->expect(of_rest, stop);
}

Result<void> JoinedStorage::keep(ExpertKey expert, std::span<const TensorBytes> tensors, const std::stop_token& stop) {
  std::vector<TensorBytes> own;
  for (const TensorBytes& tensor : tensors)
    own.push_back({.tensor = &own_entry(*tensor.tensor), .bytes = tensor.bytes});
  return storage_of(expert).keep(expert, own, stop);
}

}  // namespace dspack::runtime
