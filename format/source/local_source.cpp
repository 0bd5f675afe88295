#include "format/source/local_source.h"

#include <algorithm>

#include <fmt/format.h>

namespace dspack::format {
namespace {

// Large enough for a disk's full speed, small enough to hold one per job.
constexpr uint64_t kReadBytes = 1 << 20;

class LocalSource final : public ByteSource {
 public:
  LocalSource(std::unique_ptr<ReadFile> file, std::string version)
      : file_(std::move(file)), version_(std::move(version)) {}

  uint64_t size_bytes() const override { return file_->size_bytes(); }
  const std::string& version() const override { return version_; }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token /*stop*/) override {
    return file_->read(offset, into);
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override {
    std::vector<std::byte> buffer(std::min(kReadBytes, range.size()));
    for (uint64_t at = range.begin; at < range.end;) {
      if (stop.stop_requested()) return Error{ErrorKind::cancelled, "stopped on request"};
      const std::span<std::byte> piece(buffer.data(), std::min(buffer.size(), range.end - at));
      TRY(file_->read(at, piece));
      TRY(sink(piece));
      at += piece.size();
    }
    return {};
  }

 private:
  std::unique_ptr<ReadFile> file_;
  std::string version_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> open_local_source(FileSystem& files, const Path& path,
                                                      std::optional<std::string> version) {
  if (!version) {
    TRY_ASSIGN(const std::optional<FileInfo> info, files.stat(path));
    version = info ? fmt::format("{}-{}", info->size_bytes, info->modified_ns) : "";
  }
  TRY_ASSIGN(auto file, files.open_read(path));
  return std::unique_ptr<ByteSource>(std::make_unique<LocalSource>(std::move(file), *std::move(version)));
}

}  // namespace dspack::format
