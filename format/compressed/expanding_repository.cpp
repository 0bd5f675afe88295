#include "format/compressed/expanding_repository.h"

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "format/compressed/frames.h"
#include "format/manifest.h"

namespace dspack::format {
namespace {

/// One compressed file.
struct CompressedFile {
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;
  FrameTable table;
};
using CompressedFiles = std::map<std::string, CompressedFile, std::less<>>;  // by path as it is meant

/// Frames that are read at once when a long range streams by.
constexpr uint64_t kStreamBytes = 4 * kMostFrameBytes;

/// Reads a raw range of the file that errors call `place`: `read` fetches stored bytes.
template <class Read>
Result<void> read_expanded(const CompressedFile& file, const std::string& place, uint64_t offset,
                           std::span<std::byte> into, const Read& read) {
  if (offset > file.raw_bytes || into.size() > file.raw_bytes - offset) {
    return Error{ErrorKind::corrupt, fmt::format("{}: {} bytes at {} were asked for, the file has {}", place,
                                                 into.size(), offset, file.raw_bytes)};
  }
  const ByteRange raw{offset, offset + into.size()};
  const FrameRun run = frames_of(file.table, raw);
  if (run.first == run.last) return {};
  const uint64_t begin = file.table.stored[run.first];
  std::vector<std::byte> stored(file.table.stored[run.last] - begin);
  TRY(read(begin, std::span(stored)));
  for (size_t i = run.first; i < run.last; ++i) {
    const ByteRange frame{file.table.stored[i] - begin, file.table.stored[i + 1] - begin};
    const auto bytes = std::span(stored).subspan(frame.begin, frame.size());
    if (const auto expanded = expand_frame(file.table, i, bytes, raw, into); !expanded.has_value())
      return expanded.error().in(place);
  }
  return {};
}

class ExpandedSource final : public ByteSource {
 public:
  ExpandedSource(std::unique_ptr<ByteSource> stored, std::shared_ptr<const CompressedFiles> files,
                 const CompressedFile& file, std::string place)
      : stored_(std::move(stored)), files_(std::move(files)), file_(file), place_(std::move(place)) {}

  uint64_t size_bytes() const override { return file_.raw_bytes; }
  const std::string& version() const override { return stored_->version(); }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    const auto fetch = [&](uint64_t at, std::span<std::byte> bytes) { return stored_->read(at, bytes, stop); };
    return read_expanded(file_, place_, offset, into, fetch);
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override {
    std::vector<std::byte> buffer(std::min(kStreamBytes, range.size()));
    for (uint64_t at = range.begin; at < range.end;) {
      // Ends where a frame does, so that none is decompressed twice.
      const FrameRun run = frames_of(file_.table, {at, std::min(range.end, at + kStreamBytes)});
      const uint64_t bound = run.last > run.first + 1 ? file_.table.raw[run.last - 1] : file_.table.raw[run.last];
      const uint64_t end = std::min(range.end, std::max(bound, at + 1));
      const auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), end - at));
      TRY(read(at, piece, stop));
      TRY(sink(piece));
      at += piece.size();
    }
    return {};
  }

 private:
  std::unique_ptr<ByteSource> stored_;
  std::shared_ptr<const CompressedFiles> files_;  // holds file_
  const CompressedFile& file_;
  std::string place_;
};

class ExpandedFile final : public ReadFile {
 public:
  ExpandedFile(std::unique_ptr<ReadFile> stored, std::shared_ptr<const CompressedFiles> files,
               const CompressedFile& file, std::string place)
      : stored_(std::move(stored)), files_(std::move(files)), file_(file), place_(std::move(place)) {}

  uint64_t size_bytes() const override { return file_.raw_bytes; }

  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    const auto fetch = [&](uint64_t at, std::span<std::byte> bytes) { return stored_->read(at, bytes); };
    return read_expanded(file_, place_, offset, into, fetch);
  }

  std::optional<uint64_t> cached_bytes(ByteRange range) const override {
    const FrameRun run = frames_of(file_.table, range);
    if (run.first == run.last) return 0;
    const ByteRange stored{file_.table.stored[run.first], file_.table.stored[run.last]};
    const auto cached = stored_->cached_bytes(stored);
    if (!cached) return std::nullopt;
    return *cached * range.size() / std::max<uint64_t>(1, stored.size());
  }

 private:
  std::unique_ptr<ReadFile> stored_;
  std::shared_ptr<const CompressedFiles> files_;  // holds file_
  const CompressedFile& file_;
  std::string place_;
};

/// What a manifest says of compressed files; nothing if it is none, or says nothing: its reader will tell what is
/// wrong.
CompressedFiles compressed_files(std::string_view manifest_text) {
  CompressedFiles files;
  const auto manifest = parse_manifest(manifest_text);
  if (!manifest) return files;
  for (const PackedFile& file : manifest->files) {
    if (!file.zstd) continue;
    auto table = frame_table(frame_cuts(file, manifest->layouts[file.layout]), *file.zstd);
    DSPACK_CHECK(table.has_value(), "parse_manifest has looked at the frames");
    files.emplace(file.path, CompressedFile{file.size_bytes, file.zstd->size_bytes, std::move(*table)});
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
    const auto [files, file] = find(path);
    if (file == nullptr) return stored_->open(path, std::move(stop));
    return open_compressed(path, files, *file, "", std::move(stop));
  }

  Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                 std::stop_token stop) override {
    const auto [files, file] = find(path);
    if (file == nullptr) return stored_->open_known(path, known, std::move(stop));
    return open_compressed(path, files, *file, known.version, std::move(stop));
  }

  Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override {
    const auto [files, file] = find(path);
    if (file == nullptr) return stored_->open_file(path, mode);
    // Frames lie on no page bounds: direct reads, past the cache, would have to be cut and copied once more.
    if (mode == ReadMode::direct)
      return Error{ErrorKind::unsupported, fmt::format("{}: compressed files are not read directly", locate(path))};
    TRY_ASSIGN(auto opened, stored_->open_file(stored_path(path), mode));
    if (opened->size_bytes() != file->stored_bytes) return wrong_size(path, opened->size_bytes(), file->stored_bytes);
    return std::unique_ptr<ReadFile>(std::make_unique<ExpandedFile>(std::move(opened), files, *file, locate(path)));
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    auto text = stored_->read_text(path, limit_bytes, std::move(stop));
    if (text && path == kManifestPath && text->find(kZstdKey) != std::string::npos) {
      auto files = std::make_shared<const CompressedFiles>(compressed_files(*text));
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
  struct Found {
    std::shared_ptr<const CompressedFiles> files;
    const CompressedFile* file = nullptr;  // null: stored as it is meant
  };

  Found find(std::string_view path) const {
    const std::lock_guard lock(mutex_);
    if (!files_) return {};
    const auto found = files_->find(path);
    if (found == files_->end()) return {};
    return {files_, &found->second};
  }

  std::string stored_path(std::string_view path) const {
    return std::string(path).append(find(path).file == nullptr ? "" : kCompressedSuffix);
  }

  Error wrong_size(std::string_view path, uint64_t bytes, uint64_t wanted) const {
    return {ErrorKind::corrupt, fmt::format("{} has {} bytes where {} are expected; it is truncated or was replaced, "
                                            "fetch it again",
                                            locate(path), bytes, wanted)};
  }

  Result<std::unique_ptr<ByteSource>> open_compressed(std::string_view path,
                                                      const std::shared_ptr<const CompressedFiles>& files,
                                                      const CompressedFile& file, const std::string& version,
                                                      std::stop_token stop) {
    TRY_ASSIGN(auto opened, stored_->open_known(stored_path(path), {file.stored_bytes, version}, std::move(stop)));
    return std::unique_ptr<ByteSource>(std::make_unique<ExpandedSource>(std::move(opened), files, file, locate(path)));
  }

  std::unique_ptr<Repository> stored_;
  mutable std::mutex mutex_;
  std::shared_ptr<const CompressedFiles> files_;  // guarded by mutex_; null: none are compressed
};

}  // namespace

std::unique_ptr<Repository> make_expanding_repository(std::unique_ptr<Repository> stored) {
  return std::make_unique<ExpandingRepository>(std::move(stored));
}

}  // namespace dspack::format
