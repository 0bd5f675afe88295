// The journal of a cache folder: what of a distant repository is durably kept, and what its bytes were verified
// against. docs/format.md specifies it. Reads and writes its lines; no I/O.
// Threads: plain values and pure functions. Errors: damage is a status of loading.
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

/// The header of an ordinary checkpoint's shard, and what was known of the shard when it was read.
struct KeptHeader {
  uint64_t file_bytes = 0;
  std::string version;  // of the shard, as ByteSource::version
  KeptText text;        // the first bytes of the shard: length and JSON
};

/// A weight file that is kept whole.
struct KeptFile {
  Digest sha256;                // of the file
  std::vector<Digest> tensors;  // of a first fetch, in the file's order; empty: the manifest of the origin has them
};

/// What is kept of a file that is not whole, by the tensor's place in the file.
struct KeptParts {
  std::map<uint64_t, Digest> tensors;
  std::map<uint64_t, std::map<uint64_t, Digest>> row_blocks;  // tensor -> number of the block
};

struct CacheState {
  std::map<std::string, KeptText, std::less<>> texts;
  std::set<std::string, std::less<>> absent;  // files that the origin does not have
  std::map<std::string, KeptHeader, std::less<>> headers;
  std::map<std::string, KeptFile, std::less<>> files;
  std::map<std::string, KeptParts, std::less<>> parts;
  /// First fetches of files that are no longer kept: what comes again must be the same.
  std::map<std::string, std::vector<Digest>, std::less<>> forgotten;
  std::vector<std::string> used;  // whole files in the order of their last use known, oldest first; a name may repeat
};

struct CacheLoaded {
  CacheState state;
  uint64_t valid_bytes = 0;  // 0: there is no journal yet
};
struct CacheDamaged {
  uint64_t offset = 0;
  std::string reason;
};
/// It is of another origin, which is named.
struct CacheForeign {
  std::string origin;
};
using CacheLoad = std::variant<CacheLoaded, CacheDamaged, CacheForeign>;

/// `origin`: the address of the place whose cache it is; empty: any. Loads what is before a torn end.
[[nodiscard]] CacheLoad parse_cache_journal(std::string_view text, std::string_view origin);
/// The origin that a journal names in its first record; nullopt: there is none.
[[nodiscard]] std::optional<std::string> cache_origin(std::string_view text);

// Lines, each with its check and its end of line.
[[nodiscard]] std::string cache_line_origin(std::string_view origin);
[[nodiscard]] std::string cache_line(std::string_view path, const KeptText& text);
[[nodiscard]] std::string cache_line_absent(std::string_view path);
[[nodiscard]] std::string cache_line(std::string_view path, const KeptHeader& header);
[[nodiscard]] std::string cache_line(std::string_view path, const KeptFile& file);
/// Adds to what is known of the file's parts.
[[nodiscard]] std::string cache_line(std::string_view path, const KeptParts& parts);
/// Nothing of the file is kept any more; or of `parts`, these.
[[nodiscard]] std::string cache_line_removed(std::string_view path);
[[nodiscard]] std::string cache_line_removed(std::string_view path, const std::vector<uint64_t>& tensors);
[[nodiscard]] std::string cache_line_used(const std::vector<std::string>& paths);

}  // namespace dspack::format
