// The headers of its source's shards that a packed repository keeps (provenance/headers.json.zst).
// Threads: thread-safe (a pure function, except for reading). Errors: unsupported (none are kept), corrupt (bytes that
// differ from the manifest or do not decompress), invalid (no JSON object), budget (more than the manifest's shards can
// have), those of the repository.
#pragma once

#include <stop_token>
#include <string>

#include "format/checkpoint.h"
#include "format/json.h"
#include "format/manifest.h"
#include "format/source/repository.h"

namespace dspack::format {

inline constexpr char kHeadersPath[] = "provenance/headers.json.zst";

/// A JSON object with the header text of each shard, without the 8 bytes of its length, by the shard's path.
[[nodiscard]] Result<Json> read_kept_headers(Repository& packed, const Manifest& manifest, const std::stop_token& stop);

/// Every source shard's original header, as zstd-compressed JSON {"<shard>": "<header text>"}: together with the packed
/// bytes this suffices to rebuild the shards.
[[nodiscard]] Result<std::string> kept_headers(const Checkpoint& source);

}  // namespace dspack::format
