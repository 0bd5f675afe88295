// A repository in a local folder.
// Threads: thread-safe. Lifetime: borrows the FileSystem. Errors: also invalid (a link that the rule refuses).
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

[[nodiscard]] std::unique_ptr<Repository> make_local_repository(Path folder, FileSystem& files,
                                                                LinkRule links = LinkRule::followed);

}  // namespace dspack::format
