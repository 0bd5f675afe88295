#include "format/compressed/expanding_repository.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

namespace dspack::format {
namespace {

using CompressedFiles =
    std::map<std::string, std::shared_ptr<const CompressedFile>, std::less<>>;  // by uncompressed path

/// The compressed files in a manifest; none if it cannot be parsed: its reader will report the error.
CompressedFiles compressed_files(std::string_view manifest_text) {
  CompressedFiles files;
  const auto manifest = parse_manifest(manifest_text);
  if (!manifest) return files;
  for (const PackedFile& file : manifest->files) {
    if (!file.zstd) continue;
    files.emplace(file.path, std::make_shared<const CompressedFile>(compressed_file(*manifest, file)));
  }
  return files;
}

class ExpandingRepository final : public Repository {
 public:
  explicit ExpandingRepository(std::unique_ptr<Repository> stored) : stored_(std::move(stored)) {}

  RepositoryKind kind() const override { return stored_->kind(); }
  bool is_local() const override { return stored_->is_local(); }
  std::optional<HubOrigin> hub_origin() const override { return stored_->hub_origin(); }
  std::string description() const override { return stored_->description(); }
  std::string locate(std::string_view path) const override { return stored_->locate(stored_path(path)); }

  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override {
    const auto file = find(path);
    if (!file) return stored_->open(path, std::move(stop));
    return open_compressed(path, file, "", std::move(stop));
  }

  Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                 std::stop_token stop) override {
    const auto file = find(path);
    if (!file) return stored_->open_known(path, known, std::move(stop));
    return open_compressed(path, file, known.version, std::move(stop));
  }

  Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override {
    auto file = find(path);
    if (!file) return stored_->open_file(path, mode);
    TRY_ASSIGN(auto opened, stored_->open_file(stored_path(path), mode));
    if (opened->size_bytes() != file->stored_bytes) return wrong_size(path, opened->size_bytes(), file->stored_bytes);
    return make_expanded_file(std::move(opened), std::move(file), locate(path));
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    auto text = stored_->read_text(path, limit_bytes, std::move(stop));
    if (text && path == kManifestPath && text->find(kZstdKey) != std::string::npos) {
      CompressedFiles files = compressed_files(*text);
      const std::lock_guard lock(mutex_);
      files_ = std::move(files);
    }
    return text;
  }

  Result<std::optional<std::vector<ListedFile>>> list(std::stop_token stop) override {
    return stored_->list(std::move(stop));
  }
  Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) override {
    return stored_->declared(path, std::move(stop));
  }

 private:
  /// Null: it is not compressed.
  std::shared_ptr<const CompressedFile> find(std::string_view path) const {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(path);
    return found == files_.end() ? nullptr : found->second;
  }

  std::string stored_path(std::string_view path) const {
    return std::string(path).append(find(path) ? kCompressedSuffix : "");
  }

  Error wrong_size(std::string_view path, uint64_t bytes, uint64_t wanted) const {
    return {ErrorKind::corrupt, fmt::format("{} has {} bytes where {} are expected; it is truncated or was replaced, "
                                            "fetch it again",
                                            locate(path), bytes, wanted)};
  }

  Result<std::unique_ptr<ByteSource>> open_compressed(std::string_view path, std::shared_ptr<const CompressedFile> file,
                                                      const std::string& version, std::stop_token stop) {
    TRY_ASSIGN(auto opened, stored_->open_known(stored_path(path), {file->stored_bytes, version}, std::move(stop)));
    return make_expanded_source(std::move(opened), std::move(file), locate(path));
  }

  std::unique_ptr<Repository> stored_;
  mutable std::mutex mutex_;
  CompressedFiles files_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<Repository> make_expanding_repository(std::unique_ptr<Repository> stored) {
  return std::make_unique<ExpandingRepository>(std::move(stored));
}

CompressedFile compressed_file(const Manifest& manifest, const PackedFile& file) {
  auto table = frame_table(frame_cuts(file, manifest.layouts[file.layout]), *file.zstd);
  DSPACK_CHECK(table.has_value(), "parse_manifest has looked at the frames");
  return {file.size_bytes, file.zstd->size_bytes, std::move(*table)};
}

uint64_t reading_bytes(const Manifest& manifest) {
  uint64_t most = 0;
  for (const PackedFile& file : manifest.files)
    if (file.zstd) most = std::max(most, reading_bytes(compressed_file(manifest, file).table));
  return most;
}

}  // namespace dspack::format
