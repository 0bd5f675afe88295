#include "format/source/local_repository.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/base/checked.h"

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

class LocalRepository final : public Repository {
 public:
  LocalRepository(Path folder, FileSystem& files) : folder_(std::move(folder)), files_(files) {}

  RepositoryKind kind() const override { return RepositoryKind::local; }
  std::string description() const override { return folder_.string(); }
  std::string locate(std::string_view path) const override { return (folder_ / path).string(); }

  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token /*stop*/) override {
    TRY_ASSIGN(const std::optional<FileInfo> info, files_.stat(folder_ / path));
    TRY_ASSIGN(auto file, files_.open_read(folder_ / path));
    std::string version = info ? fmt::format("{}-{}", info->size_bytes, info->modified_ns) : "";
    return std::unique_ptr<ByteSource>(std::make_unique<LocalSource>(std::move(file), std::move(version)));
  }

  Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override {
    return files_.open_read_as(folder_ / path, mode);
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token /*stop*/) override {
    return format::read_text(files_, folder_ / path, limit_bytes);
  }

  Result<std::optional<std::vector<std::string>>> list(std::stop_token /*stop*/) override {
    std::vector<std::string> paths;
    TRY(list_below("", paths));
    std::sort(paths.begin(), paths.end());
    return std::optional(std::move(paths));
  }

  Result<std::optional<DeclaredFile>> declared(std::string_view /*path*/, std::stop_token /*stop*/) override {
    return std::optional<DeclaredFile>();
  }

 private:
  Result<void> list_below(const std::string& prefix, std::vector<std::string>& paths) {
    TRY_ASSIGN(const std::vector<std::string> names, files_.list(folder_ / prefix));
    for (const std::string& name : names) {
      if (name.starts_with('.')) continue;  // .git, .gitattributes, .cache: never part of a checkpoint
      TRY_ASSIGN(const std::optional<FileInfo> info, files_.stat(folder_ / prefix / name));
      if (!info) continue;                                                                    // a dangling link
      if (info->is_directory && !info->is_link) TRY(list_below(prefix + name + "/", paths));  // links may go in circles
      if (info->is_regular) paths.push_back(prefix + name);
    }
    return {};
  }

  Path folder_;
  FileSystem& files_;
};

}  // namespace

Result<std::unique_ptr<ReadFile>> Repository::open_file(std::string_view path, ReadMode /*mode*/) {
  return Error{ErrorKind::unsupported, fmt::format("{}: not a file of a local folder", locate(path))};
}

std::unique_ptr<Repository> make_local_repository(Path folder, FileSystem& files) {
  return std::make_unique<LocalRepository>(std::move(folder), files);
}

}  // namespace dspack::format
