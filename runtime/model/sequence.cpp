#include "runtime/model/sequence.h"

#include <algorithm>

#include "runtime/weights/scratch.h"

namespace dspack::runtime {

kernels::Rows MtpState::residuals(uint32_t position, uint32_t count) const {
  const kernels::Rows all{
      .data = {.buffer = residuals_.get(), .offset_bytes = 0}, .rows = room_, .cols = width_, .stride = width_};
  const uint32_t row = position % room_;
  return rows_of(all, row, std::min(count, room_ - row));
}

void MtpState::observe(const kernels::Rows& residual) {
  const uint32_t begin = length() + pending_;
  const uint32_t end = begin + residual.rows;
  const uint32_t kept = end - std::min(end - length(), room_);
  for (uint32_t position = std::max(begin, kept); position < end;) {
    const kernels::Rows to = residuals(position, end - position);
    queue_->copy(to.data, rows_of(residual, position - begin, to.rows).data,
                 uint64_t{to.rows} * width_ * sizeof(float));
    position += to.rows;
  }
  if (kept > length()) begin_at(kept);
  pending_ = end - length();
}

void MtpState::truncate(uint32_t length) {
  if (length >= this->length()) {
    pending_ = std::min(pending_, length - this->length());
    return;
  }
  if (length < begin_ || cache_.cut_point(length - begin_) != length - begin_) return begin_at(length);
  cache_.truncate(length - begin_);
  pending_ = 0;
}

void MtpState::give_up(uint32_t rows) {
  const uint32_t position = length();
  cache_.give_up(rows);
  begin_ = position - cache_.length();
}

void MtpState::begin_at(uint32_t position) {
  cache_.truncate(0);
  begin_ = position;
  pending_ = 0;
}

void MtpState::take_over(const MtpState& other, uint32_t length) {
  begin_at(std::min(length, other.begin_));
  if (length <= begin_) return;
  const uint32_t read = std::min(length - begin_, other.cache_.length());
  if (other.cache_.cut_point(read) != read) return begin_at(length);
  cache_.extend_from(*queue_, other.cache_, read);
  for (uint32_t position = this->length(); position < length;) {
    const kernels::Rows from = other.residuals(position, length - position);
    queue_->copy(residuals(position, from.rows).data, from.data, uint64_t{from.rows} * width_ * sizeof(float));
    position += from.rows;
  }
  pending_ = length - this->length();
}

void Sequence::truncate(uint32_t length) {
  length = cut_point(length);
  cache_.truncate(length);
  tokens_.resize(length);
  if (mtp_) mtp_->truncate(length);
}

void Sequence::extend_from(const Sequence& other, uint32_t length) {
  DSPACK_CHECK(std::ranges::equal(tokens_, other.tokens().first(this->length())), "other tokens");
  cache_.extend_from(*queue_, other.cache_, length);
  tokens_.assign(other.tokens_.begin(), other.tokens_.begin() + length);
  if (mtp_) mtp_->take_over(*other.mtp_, length);
}

void Sequence::repeat(uint32_t positions) {
  DSPACK_CHECK(!mtp_, "the MTP module reads residuals, which nobody has computed");
  const uint32_t period = length();
  cache_.repeat(*queue_, positions);
  for (uint32_t i = 0; i < positions; ++i)
    tokens_.push_back(tokens_[i % period]);
}

Result<KvBlock> Sequence::read_block(uint32_t first, uint32_t count) const {
  DSPACK_CHECK(first <= length() && count <= length() - first, "positions that hold no token");
  const uint32_t end = first + count;
  KvBlock block{.first = first, .tokens = {}, .rows = {}, .goes_on = cut_point(end) == end};
  const auto tokens = std::span(tokens_).subspan(first, count);
  block.tokens.assign(tokens.begin(), tokens.end());
  block.rows.resize(cache_.shape().block_bytes(block.extent()));
  uint64_t at = 0;
  cache_.for_each_piece(block.extent(), [&](kernels::Slice from, uint64_t bytes) {
    queue_->download(std::span(block.rows).subspan(at, bytes), from);
    at += bytes;
  });
  TRY(queue_->finish());
  return block;
}

Result<void> Sequence::append(const KvBlock& block, uint32_t end) {
  const uint32_t begin = length();
  const auto positions = static_cast<uint32_t>(block.tokens.size());
  const KvShape shape = cache_.shape();
  DSPACK_CHECK(block.first <= begin && begin <= end && end <= block.end() && end <= capacity(),
               "the block does not continue the sequence, or has no room in it");
  DSPACK_CHECK(!shape.has_rings() || (begin == block.first && end == block.end()), "a part of a block with rings");
  DSPACK_CHECK(block.rows.size() == shape.block_bytes(block.extent()), "a block of another shape");
  if (shape.has_rings()) {
    uint64_t at = 0;
    cache_.for_each_piece(block.extent(), [&](kernels::Slice to, uint64_t bytes) {
      queue_->upload(to, std::span(block.rows).subspan(at, bytes));
      at += bytes;
    });
  } else {
    uint64_t at = 0;
    cache_.for_each_rows([&](const CachePlane&, const CacheRows& rows) {
      const auto from = std::span(block.rows).subspan(at + (begin - block.first) * rows.row_bytes);
      queue_->upload(rows.at(begin), from.first((end - begin) * rows.row_bytes));
      at += positions * rows.row_bytes;
    });
  }
  TRY(queue_->finish());
  cache_.append(end - begin, block.goes_on);
  const auto tokens = std::span(block.tokens).subspan(begin - block.first, end - begin);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (mtp_) mtp_->begin_at(end);
  return {};
}

void Sequence::give_up(uint32_t tokens) {
  cache_.give_up(tokens);
  if (length() < tokens_.size()) truncate(length());
}

void Sequence::append(std::span<const uint32_t> tokens, const kernels::Rows& residual) {
  cache_.advance(static_cast<uint32_t>(tokens.size()));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (mtp_) mtp_->observe(residual);
}

}  // namespace dspack::runtime
