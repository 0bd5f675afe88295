#include "format/tensor_pass.h"

#include <algorithm>
#include <array>
#include <utility>

#include "format/base/check.h"

namespace dspack::format {

void TensorHash::take(std::span<const std::byte> bytes, std::span<Sha256* const> also) {
  std::array<Sha256*, 8> hashes{&whole_};
  size_t count = 1;
  if (block_bytes_ != 0) hashes[count++] = &block_;
  DSPACK_CHECK(also.size() <= hashes.size() - count, "too many digests of the same bytes");
  for (Sha256* hash : also)
    hashes[count++] = hash;
  const std::span<Sha256* const> together = std::span(hashes).first(count);
  while (block_bytes_ != 0 && bytes.size() >= block_bytes_ - filled_) {
    const uint64_t part = block_bytes_ - filled_;
    update_together(together, bytes.first(part));
    bytes = bytes.subspan(part);
    end_block();
  }
  if (bytes.empty()) return;
  update_together(together, bytes);
  filled_ += bytes.size();
}

TensorSums TensorHash::finish() {
  if (block_bytes_ != 0 && filled_ != 0) end_block();
  filled_ = 0;
  return {.whole = whole_.finish(), .row_blocks = std::exchange(row_blocks_, {})};
}

TensorSumsBegun TensorHash::state() const {
  TensorSumsBegun begun{.whole = whole_.state(), .row_blocks = row_blocks_};
  if (block_bytes_ != 0) begun.row_block = block_.state();
  return begun;
}

void TensorHash::resume(const TensorSumsBegun& begun) {
  whole_ = Sha256(begun.whole);
  row_blocks_ = begun.row_blocks;
  if (begun.row_block) block_ = Sha256(*begun.row_block);
  filled_ = block_bytes_ == 0 ? 0 : begun.whole.bytes % block_bytes_;
}

void TensorHash::end_block() {
  row_blocks_.push_back(block_.finish());
  filled_ = 0;
}

TensorPass::TensorPass(std::vector<Tensor> tensors, uint64_t begin, Whole whole)
    : tensors_(std::move(tensors)), at_(begin), tensor_(tensors_.empty() ? 0 : tensors_.front().block_bytes) {
  if (whole == Whole::digested) whole_.emplace();
}

void TensorPass::take(std::span<const std::byte> bytes) {
  std::array<Sha256*, 1> file{whole_ ? &*whole_ : nullptr};
  const std::span<Sha256* const> also = std::span(file).first(whole_ ? 1 : 0);
  while (!bytes.empty()) {
    finish_ended();
    const size_t next = sums_.tensors.size();
    const bool in_tensor = next < tensors_.size() && at_ >= tensors_[next].range.begin;
    uint64_t left = bytes.size();
    if (next < tensors_.size())
      left = std::min(left, (in_tensor ? tensors_[next].range.end : tensors_[next].range.begin) - at_);
    const auto part = bytes.first(left);
    if (in_tensor)
      tensor_.take(part, also);
    else if (whole_)
      whole_->update(part);
    at_ += part.size();
    bytes = bytes.subspan(part.size());
  }
}

/// Finishes tensors that end here, and empty ones at once.
void TensorPass::finish_ended() {
  while (sums_.tensors.size() < tensors_.size() && at_ == tensors_[sums_.tensors.size()].range.end) {
    sums_.tensors.push_back(tensor_.finish());
    const size_t next = sums_.tensors.size();
    if (next < tensors_.size()) tensor_ = TensorHash(tensors_[next].block_bytes);
  }
}

TensorPass::Sums TensorPass::finish() {
  finish_ended();
  if (whole_) sums_.whole = whole_->finish();
  return std::move(sums_);
}

}  // namespace dspack::format
