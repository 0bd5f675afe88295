#include "format/compressed/expanded_file.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/base/page_buffer.h"
#include "format/base/size.h"

namespace dspack::format {
namespace {

// A decompression context (96 KiB with zstd 1.5.4), rounded up for other versions.
constexpr uint64_t kContextBytes = 256ULL << 10;

Result<void> check_range(const CompressedFile& file, const std::string& place, ByteRange raw) {
  if (raw.begin <= raw.end && raw.end <= file.raw_bytes) return {};
  return Error{ErrorKind::corrupt, fmt::format("{}: bytes {}-{} were asked for, the file has {}", place, raw.begin,
                                               raw.end, file.raw_bytes)};
}

Result<void> expand(const CompressedFile& file, const std::string& place, size_t number,
                    std::span<const std::byte> stored, ByteRange raw, std::span<std::byte> into) {
  auto expanded = expand_frame(file.table, number, stored, raw, into);
  return expanded ? expanded : expanded.error().in(place);
}

/// The calling thread's buffer for stored bytes. It is kept, since fresh memory for every frame would cost page faults,
/// and used only within calls that invoke no callback.
std::span<std::byte> own_buffer(uint64_t bytes) {
  thread_local PageBuffer buffer(0);
  if (buffer.bytes().size() < bytes) {
    buffer = PageBuffer(0);  // freed first, so that there are never two
    buffer = PageBuffer(bytes);
  }
  return buffer.bytes();
}

class ExpandedFile final : public ReadFile {
 public:
  ExpandedFile(std::unique_ptr<ReadFile> stored, std::shared_ptr<const CompressedFile> file, std::string place)
      : stored_(std::move(stored)), file_(std::move(file)), place_(std::move(place)) {}

  uint64_t size_bytes() const override { return file_->raw_bytes; }

  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    const ByteRange raw{offset, offset + into.size()};
    TRY(check_range(*file_, place_, raw));
    const FrameRun run = frames_of(file_->table, raw);
    for (size_t i = run.first; i < run.last; ++i) {
      TRY_ASSIGN(const auto frame, read_frame(i));
      TRY(expand(*file_, place_, i, frame, raw, into));
    }
    return {};
  }

  std::optional<uint64_t> cached_bytes(ByteRange range) const override {
    const FrameRun run = frames_of(file_->table, range);
    if (run.first == run.last) return 0;
    const ByteRange stored{file_->table.stored[run.first], file_->table.stored[run.last]};
    const auto cached = stored_->cached_bytes(stored);
    if (!cached) return std::nullopt;
    return *cached * range.size() / std::max<uint64_t>(1, stored.size());
  }

 private:
  /// Reads whole pages, so that a direct read needs no copy.
  Result<std::span<const std::byte>> read_frame(size_t number) const {
    const ByteRange frame{file_->table.stored[number], file_->table.stored[number + 1]};
    const uint64_t begin = frame.begin / kPageBytes * kPageBytes;
    const uint64_t end = std::min(round_up(frame.end, kPageBytes), stored_->size_bytes());
    const auto bytes = own_buffer(end - begin).first(end - begin);
    TRY(stored_->read(begin, bytes));
    return std::span<const std::byte>(bytes.subspan(frame.begin - begin, frame.size()));
  }

  std::unique_ptr<ReadFile> stored_;
  std::shared_ptr<const CompressedFile> file_;
  std::string place_;
};

/// Assembles whole frames from the pieces in which stored bytes arrive.
class FrameAssembly {
 public:
  using OnFrame = std::function<Result<void>(size_t number, std::span<const std::byte> stored)>;

  FrameAssembly(const FrameTable& table, FrameRun run, OnFrame on_frame)
      : table_(table), next_(run.first), on_frame_(std::move(on_frame)) {}

  Result<void> take(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const uint64_t size = table_.stored[next_ + 1] - table_.stored[next_];
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), size - partial_.size()));
      bytes = bytes.subspan(part.size());
      if (partial_.empty() && part.size() == size) {
        TRY(on_frame_(next_++, part));
        continue;
      }
      partial_.insert(partial_.end(), part.begin(), part.end());
      if (partial_.size() < size) break;
      TRY(on_frame_(next_++, partial_));
      partial_.clear();
    }
    return {};
  }

 private:
  const FrameTable& table_;
  size_t next_;
  OnFrame on_frame_;
  std::vector<std::byte> partial_;  // the beginning of frame next_
};

class ExpandedSource final : public ByteSource {
 public:
  ExpandedSource(std::unique_ptr<ByteSource> stored, std::shared_ptr<const CompressedFile> file, std::string place)
      : stored_(std::move(stored)), file_(std::move(file)), place_(std::move(place)) {}

  uint64_t size_bytes() const override { return file_->raw_bytes; }
  const std::string& version() const override { return stored_->version(); }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    const ByteRange raw{offset, offset + into.size()};
    const auto place_frame = [&](size_t number, std::span<const std::byte> frame) {
      return expand(*file_, place_, number, frame, raw, into);
    };
    return stream_frames(raw, place_frame, std::move(stop));
  }

  Result<void> stream(ByteRange raw, const ByteSink& sink, std::stop_token stop) override {
    std::vector<std::byte> buffer;
    const auto pass_on = [&](size_t number, std::span<const std::byte> frame) -> Result<void> {
      const ByteRange part{std::max(raw.begin, file_->table.raw[number]),
                           std::min(raw.end, file_->table.raw[number + 1])};
      buffer.resize(part.size());
      TRY(expand(*file_, place_, number, frame, part, buffer));
      return sink(buffer);
    };
    return stream_frames(raw, pass_on, std::move(stop));
  }

 private:
  Result<void> stream_frames(ByteRange raw, const FrameAssembly::OnFrame& on_frame, std::stop_token stop) {
    TRY(check_range(*file_, place_, raw));
    const FrameRun run = frames_of(file_->table, raw);
    if (run.first == run.last) return {};
    FrameAssembly frames(file_->table, run, on_frame);
    const auto take = [&frames](std::span<const std::byte> bytes) { return frames.take(bytes); };
    return stored_->stream({file_->table.stored[run.first], file_->table.stored[run.last]}, take, std::move(stop));
  }

  std::unique_ptr<ByteSource> stored_;
  std::shared_ptr<const CompressedFile> file_;
  std::string place_;
};

}  // namespace

std::unique_ptr<ReadFile> make_expanded_file(std::unique_ptr<ReadFile> stored,
                                             std::shared_ptr<const CompressedFile> file, std::string place) {
  return std::make_unique<ExpandedFile>(std::move(stored), std::move(file), std::move(place));
}

std::unique_ptr<ByteSource> make_expanded_source(std::unique_ptr<ByteSource> stored,
                                                 std::shared_ptr<const CompressedFile> file, std::string place) {
  return std::make_unique<ExpandedSource>(std::move(stored), std::move(file), std::move(place));
}

uint64_t reading_bytes(const FrameTable& table) {
  uint64_t stored_bytes = 0;
  uint64_t raw_bytes = 0;
  for (size_t i = 0; i + 1 < table.stored.size(); ++i) {
    stored_bytes = std::max(stored_bytes, table.stored[i + 1] - table.stored[i]);
    raw_bytes = std::max(raw_bytes, table.raw[i + 1] - table.raw[i]);
  }
  return round_up(stored_bytes, kPageBytes) + kPageBytes + raw_bytes + kContextBytes;
}

}  // namespace dspack::format
