#include "format/kept_headers.h"

#include <zstd.h>

#include <algorithm>

#include <fmt/format.h>

namespace dspack::format {
namespace {

// V3's headers are 9.5 MB of text in 0.5 MB; what is far beyond is not such a file.
constexpr uint64_t kMaxCompressedBytes = 256ULL << 20;
constexpr uint64_t kMaxHeadersBytes = 1ULL << 30;

Result<std::string> decompress(std::string_view compressed) {
  const unsigned long long size = ZSTD_getFrameContentSize(compressed.data(), compressed.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN || size > kMaxHeadersBytes) {
    return Error{ErrorKind::corrupt, "not a zstd frame of a sensible size"};
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
                 fmt::format("{}: keeps no headers of its source ({}), so how its shards lay is not known",
                             packed.description(), kHeadersPath)};
  }
  TRY_ASSIGN(const std::string compressed, packed.read_text(kHeadersPath, kMaxCompressedBytes, stop));
  const std::string place = packed.locate(kHeadersPath);
  if (sha256(compressed) != kept->sha256) return Error{ErrorKind::corrupt, place + ": differs from its digest"};
  const auto text = decompress(compressed);
  if (!text) return text.error().in(place);
  auto json = parse_json(*text);
  if (!json) return json.error().in(place);
  if (!json->is_object()) return Error{ErrorKind::invalid, place + ": is no JSON object"};
  for (const auto& [path, header] : json->items()) {
    if (const auto reason = unsafe_path_reason(path))
      return Error{ErrorKind::invalid, fmt::format("{}: names the shard \"{}\": {}", place, path, *reason)};
  }
  return json;
}

}  // namespace dspack::format
