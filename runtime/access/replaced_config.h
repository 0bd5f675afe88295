// A checkpoint whose config.json the user has replaced: for a repository that nobody here can edit, whose config.json
// says something that this program cannot pass over.
// Threads: as a Repository. Lifetime: owns the repository. Errors: those of reading the file (not_found, budget).
#pragma once

#include <memory>

#include "format/source/repository.h"

namespace dspack::runtime {

/// `stored` with the text of `file`, which is read now, as its config.json; all its other files are its own.
[[nodiscard]] Result<std::unique_ptr<format::Repository>> replace_config(std::unique_ptr<format::Repository> stored,
                                                                         const format::Path& file,
                                                                         format::FileSystem& files);

}  // namespace dspack::runtime
