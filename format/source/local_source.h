// A file on a local disk as a ByteSource.
// Threads: thread-safe. Errors: those of FileSystem::open_read.
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

/// `version`: what identifies its content; nullopt: its size and time.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_local_source(FileSystem& files, const Path& path,
                                                                    std::optional<std::string> version = std::nullopt);

}  // namespace dspack::format
