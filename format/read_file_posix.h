// Files of the operating system that are read, one class for each way of reading; file_system_posix.cpp makes them.
// Threads: see ReadFile. Errors: see FileSystem::open_read_as.
#pragma once

#include <memory>

#include "format/file_system.h"

namespace dspack::format {

[[nodiscard]] Result<std::unique_ptr<ReadFile>> open_posix_file(const Path& path, ReadMode mode);

}  // namespace dspack::format
