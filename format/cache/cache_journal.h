// The journal of a cache folder: what is durably kept of a remote repository, and the digests that its bytes were
// verified against. docs/format.md specifies it. Parses and formats its lines; no I/O.
// Threads: plain values and pure functions. Errors: damage is a result of loading (CacheDamaged).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/base/result.h"
#include "format/digest.h"

namespace dspack::format {

/// A small file of the origin that is kept whole.
struct KeptText {
  uint64_t size_bytes = 0;
  Digest sha256;
};

/// The header of an ordinary checkpoint's shard, and the shard's size and version when it was read.
struct KeptHeader {
  uint64_t file_bytes = 0;
  std::string version;  // the shard's ByteSource::version
  KeptText text;        // the first bytes of the shard: length and JSON
};

/// A weight file that is kept whole.
struct KeptFile {
  Digest sha256;                // SHA-256 of the whole file
  std::vector<Digest> tensors;  // at the first fetch, in the file's order; empty: the origin's manifest has them
};

/// Digests of the kept parts of an incomplete file, by the tensor's index in the file.
struct KeptParts {
  std::map<uint64_t, Digest> tensors;
  std::map<uint64_t, std::map<uint64_t, Digest>> row_blocks;  // by tensor, then by block number
};

struct CacheState {
  std::map<std::string, KeptText, std::less<>> texts;
  std::set<std::string, std::less<>> absent;  // files that the origin does not have
  std::map<std::string, KeptHeader, std::less<>> headers;
  std::map<std::string, KeptFile, std::less<>> files;
  std::map<std::string, KeptParts, std::less<>> parts;
  /// Digests at the first fetch of files that are no longer kept: a second fetch must match.
  std::map<std::string, std::vector<Digest>, std::less<>> forgotten;
  std::vector<std::string> used;  // whole files by last known use, oldest first; a name may repeat
};

struct CacheLoaded {
  CacheState state;
  uint64_t valid_bytes = 0;  // 0: there is no journal yet
};
struct CacheDamaged {
  uint64_t offset = 0;
  std::string reason;
};
/// The journal belongs to this other origin.
struct CacheForeign {
  std::string origin;
};
using CacheLoad = std::variant<CacheLoaded, CacheDamaged, CacheForeign>;

/// `origin`: the address whose cache it must be; empty: any. A torn last record is ignored.
[[nodiscard]] CacheLoad parse_cache_journal(std::string_view text, std::string_view origin);
/// The origin that a journal's first record names; nullopt: it has none.
[[nodiscard]] std::optional<std::string> cache_origin(std::string_view text);

// Journal lines, each with its check and line end.
[[nodiscard]] std::string cache_line_origin(std::string_view origin);
[[nodiscard]] std::string cache_line(std::string_view path, const KeptText& text);
[[nodiscard]] std::string cache_line_absent(std::string_view path);
[[nodiscard]] std::string cache_line(std::string_view path, const KeptHeader& header);
[[nodiscard]] std::string cache_line(std::string_view path, const KeptFile& file);
/// Adds parts to those recorded for the file.
[[nodiscard]] std::string cache_line(std::string_view path, const KeptParts& parts);
/// The file is no longer kept; or, with `tensors`, only these parts of it.
[[nodiscard]] std::string cache_line_removed(std::string_view path);
[[nodiscard]] std::string cache_line_removed(std::string_view path, const std::vector<uint64_t>& tensors);
[[nodiscard]] std::string cache_line_used(const std::vector<std::string>& paths);

}  // namespace dspack::format
