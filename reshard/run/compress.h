// Compresses a finished weight file into independent frames.
// Threads: thread-safe. Memory: one frame raw, one compressed, and 4 MiB to be written. Errors: io, budget.
#pragma once

#include <vector>

#include "format/compressed/frames.h"
#include "format/file_system.h"

namespace dspack::reshard {

/// `to` is whole and durable afterwards. Equal bytes, level and version of zstd give equal bytes.
[[nodiscard]] Result<format::CompressedForm> compress_file(format::FileSystem& files, const format::Path& from,
                                                           const format::Path& to, const std::vector<uint64_t>& cuts,
                                                           int level);

}  // namespace dspack::reshard
