#include "reshard/run/tensor_writer.h"

#include <algorithm>

namespace dspack::reshard {

TensorWriter::TensorWriter(TensorTarget& target, uint64_t offset, uint64_t row_block_bytes, BackgroundWriter& writer,
                           format::Sha256* shard_hash)
    : target_(target),
      writer_(writer),
      begin_(offset % kPageBytes),
      end_(begin_),
      offset_(offset),
      hash_(row_block_bytes) {
  if (shard_hash != nullptr) others_.push_back(shard_hash);
  if (target.turn.hash != nullptr) others_.push_back(target.turn.hash);
}

void TensorWriter::resume(const TensorBegun& begun, uint64_t done) {
  hash_.resume(begun);
  offset_ += done;
  begin_ = offset_ % kPageBytes;
  end_ = begin_;
}

Result<TensorBegun> TensorWriter::pause() {
  TRY(flush(false));
  return hash_.state();
}

Result<void> TensorWriter::write(std::span<const std::byte> bytes) {
  hash_.take(bytes, others_);
  if (!target_.file) return {};
  if (target_.turn.held) target_.held.insert(target_.held.end(), bytes.begin(), bytes.end());
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kStagingBytes - end_));
    std::ranges::copy(part, writer_.buffer().begin() + static_cast<std::ptrdiff_t>(end_));
    end_ += part.size();
    if (end_ == kStagingBytes) TRY(flush(true));
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Result<TensorDigests> TensorWriter::finish() {
  TRY(flush(false));
  format::TensorSums sums = hash_.finish();
  return TensorDigests{.whole = sums.whole, .row_blocks = std::move(sums.row_blocks)};
}

/// `more`: bytes are to come; without it all is written afterwards.
Result<void> TensorWriter::flush(bool more) {
  if (!target_.file) return {};
  TRY(writer_.write(*target_.file, offset_, writer_.buffer().subspan(begin_, end_ - begin_), more));
  offset_ += end_ - begin_;
  begin_ = offset_ % kPageBytes;
  end_ = begin_;
  return {};
}

}  // namespace dspack::reshard
