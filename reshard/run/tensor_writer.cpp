#include "reshard/run/tensor_writer.h"

#include <algorithm>
#include <utility>

#include "format/base/result.h"

namespace dspack::reshard {

BackgroundWriter::BackgroundWriter() {
  buffers_[0].emplace(kStagingBytes);
}

BackgroundWriter::~BackgroundWriter() = default;

Result<void> BackgroundWriter::write(format::WriteFile& file, uint64_t offset, std::span<const std::byte> part,
                                     bool more) {
  if (!more || !has_thread()) {
    TRY(finish());
    return file.write(offset, part);
  }
  std::unique_lock lock(mutex_);
  TRY(wait(lock, kBuffers - 2));  // so that one buffer is free after this piece
  pieces_.push_back({&file, offset, part});
  current_ = (current_ + 1) % kBuffers;
  changed_.notify_all();
  return {};
}

Result<void> BackgroundWriter::finish() {
  std::unique_lock lock(mutex_);
  return wait(lock, 0);
}

/// Blocks until at most `most_under_way` pieces are under way.
Result<void> BackgroundWriter::wait(std::unique_lock<std::mutex>& lock, size_t most_under_way) {
  changed_.wait(lock, [&] { return pieces_.size() <= most_under_way; });
  if (failed_) return *std::exchange(failed_, std::nullopt);
  return {};
}

/// Whether the thread and all buffers exist; creates them if needed.
bool BackgroundWriter::has_thread() {
  if (thread_.joinable()) return true;
  const Result<void> made = guarded([this]() -> Result<void> {
    for (std::optional<PageBuffer>& buffer : buffers_) {
      if (!buffer) buffer.emplace(kStagingBytes);
    }
    thread_ = std::jthread([this](const std::stop_token& stop) { write_pieces(stop); });
    return {};
  });
  return made.has_value();
}

void BackgroundWriter::write_pieces(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !pieces_.empty(); })) {
    const PendingWrite piece = pieces_.front();
    lock.unlock();
    const Result<void> written = guarded([&] { return piece.file->write(piece.offset, piece.bytes); });
    lock.lock();
    pieces_.pop_front();
    if (!written.has_value()) {
      failed_ = written.error();
      pieces_.clear();
    }
    changed_.notify_all();
  }
}

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

/// `more`: more bytes will follow; otherwise everything is written on return.
Result<void> TensorWriter::flush(bool more) {
  if (!target_.file) return {};
  TRY(writer_.write(*target_.file, offset_, writer_.buffer().subspan(begin_, end_ - begin_), more));
  offset_ += end_ - begin_;
  begin_ = offset_ % kPageBytes;
  end_ = begin_;
  return {};
}

}  // namespace dspack::reshard
