#include "format/cache/cached_repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "format/json.h"
#include "format/safetensors.h"

namespace dspack::format {
namespace {

/// Ignores a full disk: what could not be kept is fetched again.
Result<void> unless_full(const Result<void>& kept) {
  if (!kept && kept.error().kind != ErrorKind::budget) return kept.error();
  return {};
}

/// A file whose first bytes are in memory; the rest is read from the origin on demand.
class BegunSource final : public ByteSource {
 public:
  BegunSource(Repository& origin, std::string path, KnownFile known, std::string head)
      : origin_(origin), path_(std::move(path)), known_(std::move(known)), head_(std::move(head)) {}

  uint64_t size_bytes() const override { return known_.size_bytes; }
  const std::string& version() const override { return known_.version; }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    const uint64_t begin = std::min<uint64_t>(offset, head_.size());
    const uint64_t here = std::min<uint64_t>(into.size(), head_.size() - begin);
    if (here != 0) std::memcpy(into.data(), head_.data() + begin, here);
    if (here == into.size()) return {};
    TRY_ASSIGN(const auto rest, origin_.open_known(path_, known_, stop));
    return rest->read(offset + here, into.subspan(here), stop);
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override {
    const uint64_t here = std::clamp<uint64_t>(head_.size(), range.begin, range.end);
    if (here > range.begin) TRY(sink(as_bytes(std::string_view(head_).substr(range.begin, here - range.begin))));
    if (here == range.end) return {};
    TRY_ASSIGN(const auto rest, origin_.open_known(path_, known_, stop));
    return rest->stream({here, range.end}, sink, stop);
  }

 private:
  Repository& origin_;
  std::string path_;
  KnownFile known_;
  std::string head_;
};

}  // namespace

Result<std::unique_ptr<CachedRepository>> CachedRepository::open(std::unique_ptr<Repository> origin,
                                                                 CacheFolder& folder, const std::stop_token& stop) {
  std::unique_ptr<CachedRepository> cached(new CachedRepository(std::move(origin), folder));
  const auto text = cached->read_text(kManifestPath, kManifestDocument.bytes, stop);
  if (!text && text.error().kind == ErrorKind::not_found) return cached;
  if (!text) return text.error();
  const auto manifest = parse_manifest(*text);
  if (!manifest) return manifest.error().in(cached->locate(kManifestPath));
  cached->is_packed_ = true;
  for (const CompanionFile& companion : manifest->companions)
    cached->companions_.emplace(companion.path, companion.sha256);
  return cached;
}

Error CachedRepository::absent(std::string_view path) const {
  return {ErrorKind::not_found, fmt::format("{}: the place has no such file", locate(path))};
}

bool CachedRepository::fits(std::string_view path, std::string_view text) const {
  const auto declared = companions_.find(path);
  return declared == companions_.end() || declared->second == sha256(text);
}

Result<std::string> CachedRepository::read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) {
  if (auto kept = folder_.text(path); kept && kept->size() <= limit_bytes && fits(path, *kept)) return *std::move(kept);
  const bool listed = !is_packed_ || path == kManifestPath || companions_.contains(path);
  if (!listed || folder_.is_absent(path)) return absent(path);
  return fetch_text(path, limit_bytes, stop);
}

Result<std::string> CachedRepository::fetch_text(std::string_view path, uint64_t limit_bytes,
                                                 const std::stop_token& stop) {
  constexpr unsigned kTries = 2;  // a transfer corrupted on the way often succeeds the second time
  for (unsigned i = 0; i < kTries; ++i) {
    auto text = origin_->read_text(path, limit_bytes, stop);
    if (!text && text.error().kind == ErrorKind::not_found) TRY(unless_full(folder_.keep_absent(path)));
    if (!text) return text;
    if (!fits(path, *text)) continue;
    TRY(unless_full(folder_.keep_text(path, *text)));
    return text;
  }
  return Error{ErrorKind::corrupt,
               fmt::format("{}: has other bytes than the manifest says; the repository is damaged", locate(path))};
}

Result<std::unique_ptr<ByteSource>> CachedRepository::open(std::string_view path, std::stop_token stop) {
  if (path.ends_with(".safetensors")) return open_shard(path, stop);
  auto text = folder_.text(path);
  if (!text && (folder_.is_absent(path) || (is_packed_ && !companions_.contains(path)))) return absent(path);
  if (!text) return origin_->open(path, std::move(stop));
  const KnownFile known{.size_bytes = text->size(), .version = {}};
  return std::unique_ptr<ByteSource>(
      std::make_unique<BegunSource>(*origin_, std::string(path), known, *std::move(text)));
}

Result<std::unique_ptr<ByteSource>> CachedRepository::open_shard(std::string_view path, const std::stop_token& stop) {
  auto header = folder_.header(path);
  if (!header && folder_.is_absent(path)) return absent(path);
  if (!header) {
    const auto source = origin_->open(path, stop);
    if (!source && source.error().kind == ErrorKind::not_found) TRY(unless_full(folder_.keep_absent(path)));
    if (!source) return source.error();
    header.emplace();
    header->file_bytes = (*source)->size_bytes();
    header->version = (*source)->version();
    header->text.resize(std::min<uint64_t>(8, header->file_bytes));
    TRY((*source)->read(0, std::as_writable_bytes(std::span(header->text)), stop));
    const auto length = parse_header_length(header->text, header->file_bytes);
    if (!length) return length.error().in(locate(path));
    header->text.resize(8 + *length);
    TRY((*source)->read(8, std::as_writable_bytes(std::span(header->text)).subspan(8), stop));
    TRY(unless_full(folder_.keep_header(path, *header)));
  }
  const KnownFile known{.size_bytes = header->file_bytes, .version = header->version};
  return std::unique_ptr<ByteSource>(
      std::make_unique<BegunSource>(*origin_, std::string(path), known, std::move(header->text)));
}

}  // namespace dspack::format
