// The headers that a packed repository keeps of its source's shards (provenance/headers.json.zst).
// Threads: thread-safe (a pure function, but for the reading). Errors: unsupported (none are kept), corrupt (other
// bytes than the manifest says, or none that decompress), invalid (no JSON object), budget (more than the
// manifest's shards can have), those of the repository.
#pragma once

#include <stop_token>

#include "format/json.h"
#include "format/manifest.h"
#include "format/source/repository.h"

namespace dspack::format {

/// An object of the headers' texts, without the 8 bytes of their length, by path of the shard.
[[nodiscard]] Result<Json> read_kept_headers(Repository& packed, const Manifest& manifest, const std::stop_token& stop);

}  // namespace dspack::format
