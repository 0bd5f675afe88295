#include "reshard/run/background_writer.h"

#include <utility>

#include "format/base/guarded.h"

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
  TRY(wait(lock, kBuffers - 2));  // so that after this piece one buffer is free
  pieces_.push_back({&file, offset, part});
  current_ = (current_ + 1) % kBuffers;
  changed_.notify_all();
  return {};
}

Result<void> BackgroundWriter::finish() {
  std::unique_lock lock(mutex_);
  return wait(lock, 0);
}

/// Until no more pieces than that are under way.
Result<void> BackgroundWriter::wait(std::unique_lock<std::mutex>& lock, size_t most_under_way) {
  changed_.wait(lock, [&] { return pieces_.size() <= most_under_way; });
  if (failed_) return *std::exchange(failed_, std::nullopt);
  return {};
}

/// Whether there are a thread and all buffers, made now if need be.
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
    const Piece piece = pieces_.front();
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

}  // namespace dspack::reshard
