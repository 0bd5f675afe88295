#include "format/kept_headers.h"

#include <zstd.h>

#include <algorithm>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/json.h"

namespace dspack::format {
namespace {

constexpr int kZstdLevel = 9;  // 12 MB of headers become 230 kB in 0.1 s; with level 19, 200 kB in 10 s and 85 MB

/// Bounds for the headers of a manifest's shards: no header is longer than its shard, and together they are no longer
/// than a checkpoint's may be. As JSON text each byte takes one or two, and each shard has a path.
DocumentBounds bounds_of(const Manifest& manifest) {
  constexpr uint64_t kAround = 16;  // quotes, a colon, a comma
  uint64_t headers = 0;
  uint64_t paths = 2;
  for (const SourceShard& shard : manifest.source) {
    headers += std::min(shard.size_bytes, kMaxHeadersBytes - headers);
    paths += 2 * shard.path.size() + kAround;
  }
  return {"what is kept of the headers of these shards", 2 * headers + paths, 2 * manifest.source.size() + 1};
}

Result<std::string> decompress(std::string_view compressed, const DocumentBounds& bounds) {
  const unsigned long long size = ZSTD_getFrameContentSize(compressed.data(), compressed.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN)
    return Error{ErrorKind::corrupt, "not a zstd frame that declares its size"};
  if (size > bounds.bytes) {
    return Error{ErrorKind::budget,
                 fmt::format("expands to {}; {} may have {}", size_words(size), bounds.kind, size_words(bounds.bytes))};
  }
  std::string text(size, '\0');
  const size_t got = ZSTD_decompress(text.data(), text.size(), compressed.data(), compressed.size());
  if (ZSTD_isError(got) != 0 || got != text.size()) return Error{ErrorKind::corrupt, "cannot be decompressed"};
  return text;
}

}  // namespace

Result<Json> read_kept_headers(Repository& packed, const Manifest& manifest, const std::stop_token& stop) {
  const auto kept = std::ranges::find(manifest.companions, kHeadersPath, &CompanionFile::path);
  if (kept == manifest.companions.end()) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: keeps no headers of its source ({}), so the layout of its shards is not known",
                             packed.description(), kHeadersPath)};
  }
  const DocumentBounds bounds = bounds_of(manifest);
  // Incompressible data grows by less than a hundredth.
  const uint64_t most_compressed = bounds.bytes + bounds.bytes / 64 + 1024;
  TRY_ASSIGN(const std::string compressed, packed.read_text(kHeadersPath, most_compressed, stop));
  const std::string place = packed.locate(kHeadersPath);
  if (sha256(compressed) != kept->sha256) return Error{ErrorKind::corrupt, place + ": differs from its digest"};
  const auto text = decompress(compressed, bounds);
  if (!text) return text.error().in(place);
  auto json = parse_json(*text, bounds);
  if (!json) return json.error().in(place);
  if (!json->is_object()) return Error{ErrorKind::invalid, place + ": is no JSON object"};
  for (const auto& [path, header] : json->items()) {
    if (const auto reason = unsafe_path_reason(path))
      return Error{ErrorKind::invalid, fmt::format("{}: names the shard \"{}\": {}", place, path, *reason)};
  }
  return json;
}

Result<std::string> kept_headers(const Checkpoint& source) {
  Json headers = Json::object();
  // Skips the 8 bytes of the text's length.
  for (const CheckpointFile& file : source.files())
    headers[file.path] = file.header.substr(8);
  const std::string text = canonical_json(headers);
  std::string compressed(ZSTD_compressBound(text.size()), '\0');
  const size_t bytes = ZSTD_compress(compressed.data(), compressed.size(), text.data(), text.size(), kZstdLevel);
  if (ZSTD_isError(bytes) != 0) return Error{ErrorKind::io, fmt::format("zstd: {}", ZSTD_getErrorName(bytes))};
  compressed.resize(bytes);
  return compressed;
}

}  // namespace dspack::format
