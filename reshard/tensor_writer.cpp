#include "reshard/tensor_writer.h"

#include <algorithm>

namespace dspack::reshard {

TensorWriter::TensorWriter(TensorTarget& target, uint64_t offset, uint64_t row_block_bytes, BackgroundWriter& writer,
                           format::Sha256* shard_hash)
    : target_(target),
      writer_(writer),
      begin_(offset % kPageBytes),
      end_(begin_),
      offset_(offset),
      hashes_{&hash_},
      block_bytes_(row_block_bytes),
      block_left_(row_block_bytes) {
  if (shard_hash != nullptr) hashes_.push_back(shard_hash);
  if (target.turn.hash != nullptr) hashes_.push_back(target.turn.hash);
}

void TensorWriter::resume(const TensorBegun& begun, uint64_t done) {
  hash_ = format::Sha256(begun.whole);
  digests_.row_blocks = begun.row_blocks;
  if (begun.row_block) block_hash_ = format::Sha256(*begun.row_block);
  if (block_bytes_ != 0) block_left_ = block_bytes_ - done % block_bytes_;
  offset_ += done;
  begin_ = offset_ % kPageBytes;
  end_ = begin_;
}

Result<TensorBegun> TensorWriter::pause() {
  TRY(flush(false));
  TensorBegun begun{.whole = hash_.state(), .row_blocks = digests_.row_blocks};
  if (block_bytes_ != 0) begun.row_block = block_hash_.state();
  return begun;
}

Result<void> TensorWriter::write(std::span<const std::byte> bytes) {
  digest(bytes);
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
  if (block_left_ != block_bytes_) end_block();
  digests_.whole = hash_.finish();
  return std::move(digests_);
}

void TensorWriter::digest(std::span<const std::byte> bytes) {
  update_together(hashes_, bytes);
  while (block_bytes_ != 0 && !bytes.empty()) {
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), block_left_));
    block_hash_.update(part);
    block_left_ -= part.size();
    bytes = bytes.subspan(part.size());
    if (block_left_ == 0) end_block();
  }
}

void TensorWriter::end_block() {
  digests_.row_blocks.push_back(block_hash_.finish());
  block_left_ = block_bytes_;
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
