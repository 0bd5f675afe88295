#include "format/source/local_repository.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/file_system.h"

namespace dspack::format {
namespace {

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
      if (stop.stop_requested()) return stopped();
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

/// Folders, links resolved, in which files may lie; an empty path contains nothing.
struct Bounds {
  Path folder;
  Path blobs;         // for a snapshot in the Hub's cache, models--ORG--NAME/snapshots/COMMIT: the repository's own
  Path shared_blobs;  // for such a snapshot: those shared by the cache's repositories

  [[nodiscard]] bool hold(const Path& place) const {
    const auto inside = [&place](const Path& outer) { return !outer.empty() && is_within(place, outer); };
    return inside(folder) || inside(blobs) || inside(shared_blobs);
  }
};

Bounds bounds_of(const Path& folder) {
  std::error_code missing;
  Bounds bounds{.folder = std::filesystem::canonical(folder, missing), .blobs = {}, .shared_blobs = {}};
  const Path snapshots = bounds.folder.parent_path();
  const Path repository = snapshots.parent_path();
  if (snapshots.filename() != "snapshots" || !repository.filename().string().starts_with("models--")) return bounds;
  bounds.blobs = repository / "blobs";
  bounds.shared_blobs = repository.parent_path() / "blobs";
  return bounds;
}

class LocalRepository final : public Repository {
 public:
  LocalRepository(Path folder, FileSystem& files, LinkRule links)
      : folder_(std::move(folder)),
        files_(files),
        bounds_(links == LinkRule::inside ? std::optional(bounds_of(folder_)) : std::nullopt) {}

  RepositoryKind kind() const override { return RepositoryKind::local; }
  std::string description() const override { return folder_.string(); }
  std::string locate(std::string_view path) const override { return (folder_ / path).string(); }

  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token /*stop*/) override {
    TRY(check_place(path));
    return open_local_source(files_, folder_ / path);
  }

  Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override {
    TRY(check_place(path));
    return files_.open_read_as(folder_ / path, mode);
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token /*stop*/) override {
    TRY(check_place(path));
    return format::read_text(files_, folder_ / path, limit_bytes);
  }

  Result<std::optional<std::vector<ListedFile>>> list(std::stop_token /*stop*/) override {
    std::vector<ListedFile> found;
    TRY(list_below("", found));
    std::ranges::sort(found, {}, &ListedFile::path);
    return std::optional(std::move(found));
  }

  Result<std::optional<DeclaredFile>> declared(std::string_view /*path*/, std::stop_token /*stop*/) override {
    return std::optional<DeclaredFile>();
  }

 private:
  /// Checks that a file, links resolved, lies within the bounds. A missing file is reported when it is opened.
  Result<void> check_place(std::string_view path) const {
    if (!bounds_) return {};
    std::error_code failed;
    const Path place = std::filesystem::canonical(folder_ / path, failed);
    if (failed == std::errc::no_such_file_or_directory || failed == std::errc::not_a_directory) return {};
    // A link can be so long that it can be opened but not resolved; what cannot be resolved is refused.
    if (failed)
      return Error{ErrorKind::invalid,
                   fmt::format("{}: its absolute path is not known: {}", locate(path), failed.message())};
    if (bounds_->hold(place)) return {};
    return Error{ErrorKind::invalid,
                 fmt::format("{}: leads out of its folder by a symbolic link, to {}; only what lies in the folder is "
                             "copied: put the file itself there, or name the folder that it lies in as the source",
                             locate(path), place.string())};
  }

  Result<void> list_below(const std::string& prefix, std::vector<ListedFile>& found) {
    TRY_ASSIGN(const std::vector<std::string> names, files_.list(folder_ / prefix));
    for (const std::string& name : names) {
      if (name.starts_with('.')) continue;  // .git, .gitattributes, .cache: never part of a checkpoint
      TRY_ASSIGN(const std::optional<FileInfo> info, files_.stat(folder_ / prefix / name));
      if (!info) continue;                                                                    // a dangling link
      if (info->is_directory && !info->is_link) TRY(list_below(prefix + name + "/", found));  // links may form cycles
      if (info->is_regular) found.push_back({.path = prefix + name, .size_bytes = info->size_bytes});
    }
    return {};
  }

  Path folder_;
  FileSystem& files_;
  std::optional<Bounds> bounds_;  // nullopt: files may lie anywhere
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

std::unique_ptr<Repository> make_local_repository(Path folder, FileSystem& files, LinkRule links) {
  return std::make_unique<LocalRepository>(std::move(folder), files, links);
}

}  // namespace dspack::format
