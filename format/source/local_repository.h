// A repository in a local folder.
// Threads: thread-safe. Lifetime: borrows the FileSystem.
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

[[nodiscard]] std::unique_ptr<Repository> make_local_repository(Path folder, FileSystem& files);

}  // namespace dspack::format
