#include "format/cache/kept_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "format/base/size.h"
#include "format/cache/cache_blocks.h"
#include "format/cache/cache_folder.h"
#include "format/json.h"
#include "format/packing/planned_file.h"
#include "format/source/repository.h"

namespace dspack::format {
namespace {

/// A cache folder as a repository that sends no requests: its small files and shard headers. Enough for the catalogue;
/// weights are not readable through it. Borrows the FileSystem and the state. Errors: not_found (not kept), corrupt
/// (changed since).
class KeptRepository final : public Repository {
 public:
  KeptRepository(FileSystem& files, Path root, const CacheState& state)
      : files_(files), root_(std::move(root)), state_(state) {}

  [[nodiscard]] RepositoryKind kind() const override { return RepositoryKind::http; }
  [[nodiscard]] std::string description() const override { return root_.string(); }
  [[nodiscard]] std::string locate(std::string_view path) const override { return (root_ / path).string(); }
  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override;
  [[nodiscard]] Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                              std::stop_token stop) override;
  [[nodiscard]] Result<std::optional<std::vector<ListedFile>>> list(std::stop_token /*stop*/) override {
    return std::optional<std::vector<ListedFile>>();
  }
  [[nodiscard]] Result<std::optional<DeclaredFile>> declared(std::string_view /*path*/,
                                                             std::stop_token /*stop*/) override {
    return std::optional<DeclaredFile>();
  }

 private:
  FileSystem& files_;
  Path root_;
  const CacheState& state_;
};

/// A shard whose first bytes are known.
class KeptHead final : public ByteSource {
 public:
  KeptHead(uint64_t size_bytes, std::string version, std::string head)
      : size_bytes_(size_bytes), version_(std::move(version)), head_(std::move(head)) {}

  uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& version() const override { return version_; }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token /*stop*/) override {
    TRY(check({offset, offset + into.size()}));
    if (!into.empty()) std::memcpy(into.data(), head_.data() + offset, into.size());
    return {};
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token /*stop*/) override {
    TRY(check(range));
    return sink(as_bytes(std::string_view(head_).substr(range.begin, range.size())));
  }

 private:
  Result<void> check(ByteRange range) const {
    if (range.begin <= range.end && range.end <= head_.size()) return {};
    return Error{ErrorKind::not_found, "only the header of this file is kept"};
  }

  uint64_t size_bytes_;
  std::string version_;
  std::string head_;
};

Error not_kept(const std::string& place) {
  return {ErrorKind::not_found, place + ": is not kept"};
}

/// A small file whose bytes match the journal's digest. Errors: not_found (the file is gone), corrupt, io.
Result<std::string> read_kept_text(FileSystem& files, const Path& path, const KeptText& kept) {
  TRY_ASSIGN(std::string text, read_text(files, path, kTokenizerDocument.bytes));  // the largest kind that is kept
  if (text.size() != kept.size_bytes || sha256(text) != kept.sha256)
    return Error{ErrorKind::corrupt, path.string() + ": has other bytes than were fetched"};
  return text;
}

Result<std::unique_ptr<ByteSource>> KeptRepository::open(std::string_view path, std::stop_token /*stop*/) {
  if (const auto header = state_.headers.find(path); header != state_.headers.end()) {
    TRY_ASSIGN(std::string head, read_kept_text(files_, cache_header_path(root_, path), header->second.text));
    return std::unique_ptr<ByteSource>(
        std::make_unique<KeptHead>(header->second.file_bytes, header->second.version, std::move(head)));
  }
  const auto kept = state_.texts.find(path);
  if (kept == state_.texts.end()) return not_kept(locate(path));
  TRY_ASSIGN(std::string text, read_kept_text(files_, cache_text_path(root_, path), kept->second));
  const uint64_t bytes = text.size();
  return std::unique_ptr<ByteSource>(std::make_unique<KeptHead>(bytes, "", std::move(text)));
}

Result<std::string> KeptRepository::read_text(std::string_view path, uint64_t limit_bytes, std::stop_token /*stop*/) {
  const auto kept = state_.texts.find(path);
  if (kept == state_.texts.end()) return not_kept(locate(path));
  if (kept->second.size_bytes > limit_bytes)
    return Error{ErrorKind::budget, fmt::format("{}: larger than {}", locate(path), size_words(limit_bytes))};
  return read_kept_text(files_, cache_text_path(root_, path), kept->second);
}

constexpr size_t kMaxFindings = 10;

/// The model whose weights are kept, and the files planned for them.
struct KeptModel {
  Checkpoint catalogue;
  std::vector<PlannedFile> planned;
};

Result<KeptModel> open_kept_model(FileSystem& files, const Path& root, const CacheState& state,
                                  const std::stop_token& stop) {
  KeptRepository repository(files, root, state);
  TRY_ASSIGN(Checkpoint catalogue, Checkpoint::open(repository, 1, stop));
  auto planned = plan_files({}, catalogue, {});
  return KeptModel{std::move(catalogue), std::move(planned)};
}

/// The file at its final or its part path; nullopt: neither exists. `size`: that of the file found.
Result<std::optional<Path>> find_kept(FileSystem& files, const Path& root, const std::string& path, uint64_t& size) {
  for (const Path& candidate : {root / path, cache_part_path(root, path)}) {
    TRY_ASSIGN(const auto info, files.stat(candidate));
    if (!info || !info->is_regular) continue;
    size = info->size_bytes;
    return std::optional(candidate);
  }
  return std::optional<Path>();
}

/// nullopt: there is no such block.
std::optional<ByteRange> block_range(const Checkpoint& catalogue, const PlannedFile& file, uint64_t slot,
                                     uint64_t block) {
  const uint32_t tensor = file.tensors[slot];
  const TensorEntry& entry = catalogue.tensors()[tensor];
  const uint64_t rows = rows_per_cache_block(catalogue, tensor);
  if (rows == 0 || block >= ceil_div(entry.shape[0], rows)) return std::nullopt;
  const uint64_t bytes = entry.range.size() / entry.shape[0] * rows;
  const uint64_t begin = block * bytes;
  return ByteRange{file.offsets[slot] + begin, file.offsets[slot] + std::min(begin + bytes, entry.range.size())};
}

/// The byte ranges of a file's kept parts by the journal, each with its digest.
std::vector<std::pair<ByteRange, Digest>> parts_of(const KeptModel& model, const PlannedFile& file,
                                                   const KeptParts& parts) {
  std::vector<std::pair<ByteRange, Digest>> ranges;
  for (const auto& [slot, digest] : parts.tensors) {
    if (slot >= file.tensors.size()) continue;
    const uint64_t bytes = model.catalogue.tensors()[file.tensors[slot]].range.size();
    ranges.emplace_back(ByteRange{file.offsets[slot], file.offsets[slot] + bytes}, digest);
  }
  for (const auto& [slot, blocks] : parts.row_blocks) {
    if (slot >= file.tensors.size() || parts.tensors.contains(slot)) continue;
    for (const auto& [block, digest] : blocks) {
      if (const auto range = block_range(model.catalogue, file, slot, block)) ranges.emplace_back(*range, digest);
    }
  }
  return ranges;
}

/// A weight file that is kept in parts. Borrows the model's plan.
struct PartialFile {
  const PlannedFile* file;
  std::vector<std::pair<ByteRange, Digest>> ranges;
};

/// State of a check in progress.
struct Checking {
  FileSystem& files;
  const Path& root;
  Progress& progress;
  const std::stop_token& stop;
  CacheCheck check;

  void found(std::string finding) {
    ++check.damaged;
    if (check.findings.size() < kMaxFindings) check.findings.push_back(std::move(finding));
  }

  Result<Digest> digest_of(const ReadFile& file, ByteRange range) {
    constexpr uint64_t kPieceOfFile = 1 << 20;
    std::vector<std::byte> buffer(std::min(kPieceOfFile, range.size()));
    Sha256 hash;
    for (uint64_t at = range.begin; at < range.end;) {
      if (stop.stop_requested()) return stopped();
      const auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), range.end - at));
      TRY(file.read(at, piece));
      hash.update(piece);
      at += piece.size();
      check.bytes += piece.size();
      progress.advanced(piece.size());
    }
    return hash.finish();
  }

  /// Checks a small file.
  void text(const Path& path, const KeptText& kept) {
    ++check.digests;
    check.bytes += kept.size_bytes;
    if (const auto read = read_kept_text(files, path, kept); !read) found(read.error().message);
    progress.item_done();
  }

  /// Checks ranges of a file.
  Result<void> ranges(const Path& path, const std::vector<std::pair<ByteRange, Digest>>& ranges) {
    const auto file = files.open_read(path);
    if (!file) {
      check.digests += ranges.size();
      found(file.error().message);
      return {};
    }
    for (const auto& [range, wanted] : ranges) {
      ++check.digests;
      const auto digest = digest_of(**file, range);
      if (!digest && digest.error().kind == ErrorKind::cancelled) return digest.error();
      if (!digest)
        found(digest.error().message);
      else if (*digest != wanted)
        found(fmt::format("{}: bytes {} to {} differ from what was fetched", path.string(), range.begin, range.end));
    }
    return {};
  }

  Result<void> whole(const std::string& path, const KeptFile& kept) {
    uint64_t size = 0;
    TRY_ASSIGN(const auto where, find_kept(files, root, path, size));
    if (where) {
      TRY(ranges(*where, {{ByteRange{0, size}, kept.sha256}}));
    } else {
      ++check.digests;
      found((root / path).string() + ": is gone");
    }
    progress.item_done();
    return {};
  }

  Result<void> parts(const PartialFile& part) {
    uint64_t size = 0;
    TRY_ASSIGN(const auto where, find_kept(files, root, part.file->path, size));
    if (where && size == part.file->size_bytes) {
      TRY(ranges(*where, part.ranges));
    } else {
      check.digests += part.ranges.size();
      found((root / part.file->path).string() + (where ? ": has another size" : ": is gone"));
    }
    progress.item_done();
    return {};
  }
};

/// All files that are kept in parts.
std::vector<PartialFile> partial_files(const KeptModel& model, const CacheState& state) {
  std::vector<PartialFile> found;
  for (const PlannedFile& file : model.planned) {
    const auto parts = state.parts.find(file.path);
    if (parts == state.parts.end() || state.files.contains(file.path)) continue;
    if (auto ranges = parts_of(model, file, parts->second); !ranges.empty())
      found.push_back({.file = &file, .ranges = std::move(ranges)});
  }
  return found;
}

}  // namespace

Result<KeptShare> kept_share(FileSystem& files, const Path& root, const CacheState& state,
                             const std::stop_token& stop) {
  TRY_ASSIGN(const KeptModel model, open_kept_model(files, root, state, stop));
  KeptShare share{.present_bytes = 0, .total_bytes = model.catalogue.payload_bytes()};
  for (const PlannedFile& file : model.planned) {
    const auto parts = state.parts.find(file.path);
    const bool is_whole = state.files.contains(file.path);
    if (!is_whole && parts == state.parts.end()) continue;
    uint64_t size = 0;
    TRY_ASSIGN(const auto where, find_kept(files, root, file.path, size));
    if (!where || size != file.size_bytes) continue;
    if (is_whole) {
      share.present_bytes += file.size_bytes - file.data_start;
      continue;
    }
    for (const auto& [range, digest] : parts_of(model, file, parts->second))
      share.present_bytes += range.size();
  }
  return share;
}

Result<CacheCheck> check_kept(FileSystem& files, const Path& root, const CacheState& state, Progress& progress,
                              const std::stop_token& stop) {
  Checking checking{.files = files, .root = root, .progress = progress, .stop = stop, .check = {}};
  std::optional<KeptModel> model;
  std::vector<PartialFile> partial;
  if (!state.parts.empty()) {
    auto opened = open_kept_model(files, root, state, stop);
    if (!opened && opened.error().kind == ErrorKind::cancelled) return opened.error();
    if (!opened) checking.check.unchecked = opened.error().message;
    if (opened) partial = partial_files(model.emplace(*std::move(opened)), state);
  }
  progress.started("checking", 0, state.texts.size() + state.headers.size() + state.files.size() + partial.size());
  for (const auto& [path, kept] : state.texts)
    checking.text(cache_text_path(root, path), kept);
  for (const auto& [path, kept] : state.headers)
    checking.text(cache_header_path(root, path), kept.text);
  for (const auto& [path, kept] : state.files)
    TRY(checking.whole(path, kept));
  for (const PartialFile& part : partial)
    TRY(checking.parts(part));
  progress.finished();
  return std::move(checking.check);
}

}  // namespace dspack::format
