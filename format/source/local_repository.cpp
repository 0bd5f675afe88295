#include "format/source/local_repository.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/source/local_source.h"

namespace dspack::format {
namespace {

class LocalRepository final : public Repository {
 public:
  LocalRepository(Path folder, FileSystem& files) : folder_(std::move(folder)), files_(files) {}

  RepositoryKind kind() const override { return RepositoryKind::local; }
  std::string description() const override { return folder_.string(); }
  std::string locate(std::string_view path) const override { return (folder_ / path).string(); }

  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token /*stop*/) override {
    return open_local_source(files_, folder_ / path);
  }

  Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override {
    return files_.open_read_as(folder_ / path, mode);
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token /*stop*/) override {
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
  Result<void> list_below(const std::string& prefix, std::vector<ListedFile>& found) {
    TRY_ASSIGN(const std::vector<std::string> names, files_.list(folder_ / prefix));
    for (const std::string& name : names) {
      if (name.starts_with('.')) continue;  // .git, .gitattributes, .cache: never part of a checkpoint
      TRY_ASSIGN(const std::optional<FileInfo> info, files_.stat(folder_ / prefix / name));
      if (!info) continue;                                                                    // a dangling link
      if (info->is_directory && !info->is_link) TRY(list_below(prefix + name + "/", found));  // links may go in circles
      if (info->is_regular) found.push_back({.path = prefix + name, .size_bytes = info->size_bytes});
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
