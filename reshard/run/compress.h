// Compresses a finished weight file into independent frames.
// Threads: thread-safe. Memory: one frame raw, one compressed, and a write buffer of 4 MiB. Errors: io, budget.
#pragma once

#include <vector>

#include "format/compressed/frames.h"
#include "format/file_system.h"

namespace dspack::reshard {

/// On success, `to` is complete and durable. Equal bytes, level and zstd version give equal output.
[[nodiscard]] Result<format::CompressedForm> compress_file(format::FileSystem& files, const format::Path& from,
                                                           const format::Path& to, const std::vector<uint64_t>& cuts,
                                                           int level);

}  // namespace dspack::reshard
