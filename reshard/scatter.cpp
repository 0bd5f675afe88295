#include "reshard/scatter.h"

#include <algorithm>

namespace dspack::reshard {

Scatter::Scatter(const Plan& plan, const format::Checkpoint& source, uint64_t shard, PackedWriter& writer)
    : source_(source),
      copies_(plan.shards[shard]),
      writer_(writer),
      staging_(kStagingBytes),
      at_(source.files()[shard].data_start) {
  done_.shard = shard;
  shard_hash_.update(format::as_bytes(source.files()[shard].header));
}

Result<void> Scatter::take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    TRY(end_tensors());
    if (next_ == copies_.size()) return Error{ErrorKind::corrupt, "the shard has bytes behind its last tensor"};
    if (!tensor_) TRY(begin_tensor());
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), copies_[next_].source.end - at_));
    TRY(tensor_->write(part));
    at_ += part.size();
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Result<ShardDone> Scatter::finish() {
  TRY(end_tensors());
  if (next_ != copies_.size()) return Error{ErrorKind::corrupt, "the shard ended before its last tensor"};
  done_.sha256 = shard_hash_.finish();
  return std::move(done_);
}

Result<void> Scatter::begin_tensor() {
  const Copy& copy = copies_[next_];
  TRY_ASSIGN(target_, writer_.open(copy));
  const format::TensorEntry& tensor = source_.tensors()[copy.tensor];
  const uint64_t rows = rows_per_block(tensor);
  tensor_.emplace(target_, copy.offset, rows == 0 ? 0 : rows * (copy.source.size() / tensor.shape[0]), staging_,
                  shard_hash_);
  return {};
}

/// Closes the tensor that ends here; and those of zero bytes, which have nothing to wait for.
Result<void> Scatter::end_tensors() {
  while (next_ < copies_.size() && at_ == copies_[next_].source.end) {
    if (!tensor_) TRY(begin_tensor());
    TRY_ASSIGN(TensorDigests digests, tensor_->finish());
    done_.tensors.push_back(std::move(digests));
    tensor_.reset();
    writer_.close(copies_[next_], target_);
    target_ = {};
    ++next_;
  }
  return {};
}

}  // namespace dspack::reshard
