#include "reshard/run/compress.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "format/base/page_buffer.h"

namespace dspack::reshard {
namespace {

// Write size: whole, aligned pages, as direct I/O requires.
constexpr uint64_t kWriteBytes = 4ULL << 20;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

/// Reads a file that was written past the page cache, also past it if the file system supports that.
class RawFile {
 public:
  static Result<RawFile> open(format::FileSystem& files, const format::Path& path) {
    auto direct = files.open_read_as(path, format::ReadMode::direct);
    if (!direct && direct.error().kind != ErrorKind::unsupported) return direct.error();
    RawFile file(files, path);
    if (direct) file.file_ = std::move(*direct);
    return file;
  }

  Result<void> read(uint64_t offset, std::span<std::byte> into) {
    if (file_ != nullptr) {
      auto read = file_->read(offset, into);
      if (read || read.error().kind != ErrorKind::unsupported) return read;
    }
    TRY_ASSIGN(file_, files_->open_read(path_));
    return file_->read(offset, into);
  }

 private:
  RawFile(format::FileSystem& files, format::Path path) : files_(&files), path_(std::move(path)) {}

  format::FileSystem* files_;
  format::Path path_;
  std::unique_ptr<format::ReadFile> file_;  // null: direct reads are not supported
};

/// A file that is only appended to, with its digest.
class Appending {
 public:
  explicit Appending(std::unique_ptr<format::WriteFile> file) : file_(std::move(file)), buffer_(kWriteBytes) {}

  Result<void> append(std::span<const std::byte> bytes) {
    hash_.update(bytes);
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kWriteBytes - held_));
      std::ranges::copy(part, buffer_.bytes().subspan(held_).begin());
      held_ += part.size();
      bytes = bytes.subspan(part.size());
      if (held_ == kWriteBytes) TRY(flush());
    }
    return {};
  }

  /// Makes the file durable; returns its size and digest.
  Result<std::pair<uint64_t, format::Digest>> finish() {
    TRY(flush());
    TRY(file_->sync());
    return std::pair(written_, hash_.finish());
  }

 private:
  Result<void> flush() {
    TRY(file_->write(written_, buffer_.bytes().first(held_)));
    written_ += std::exchange(held_, 0);
    return {};
  }

  std::unique_ptr<format::WriteFile> file_;
  PageBuffer buffer_;
  uint64_t held_ = 0;  // bytes in the buffer
  uint64_t written_ = 0;
  format::Sha256 hash_;
};

}  // namespace

Result<format::CompressedForm> compress_file(format::FileSystem& files, const format::Path& from,
                                             const format::Path& to, const std::vector<uint64_t>& cuts, int level) {
  const std::unique_ptr<ZSTD_CCtx, FreeContext> context(allocated(ZSTD_createCCtx()));
  TRY_ASSIGN(RawFile raw, RawFile::open(files, from));
  TRY_ASSIGN(auto opened, files.open_write(to, format::OpenMode::truncate));
  Appending file(std::move(opened));
  format::CompressedForm form;
  PageBuffer frame(kPageBytes + format::kMaxFrameBytes);
  std::vector<std::byte> compressed(ZSTD_compressBound(format::kMaxFrameBytes));
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto piece = frame.bytes().subspan(cuts[i] % kPageBytes, cuts[i + 1] - cuts[i]);
    TRY(raw.read(cuts[i], piece));
    const size_t bytes =
        ZSTD_compressCCtx(context.get(), compressed.data(), compressed.size(), piece.data(), piece.size(), level);
    if (ZSTD_isError(bytes) != 0)
      return Error{ErrorKind::io, fmt::format("{}: zstd: {}", to.string(), ZSTD_getErrorName(bytes))};
    TRY(file.append(std::span(compressed).first(bytes)));
    form.frames.push_back(static_cast<uint32_t>(bytes));
  }
  TRY(file.append(format::as_bytes(format::seek_table(cuts, form.frames))));
  TRY_ASSIGN(const auto made, file.finish());
  std::tie(form.size_bytes, form.sha256) = made;
  return form;
}

}  // namespace dspack::reshard
