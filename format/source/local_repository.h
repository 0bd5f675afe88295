// A repository in a local folder, and one of its files as a ByteSource.
// Threads: thread-safe. Lifetime: borrows the FileSystem. Errors: also invalid (a link that the rule refuses).
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

[[nodiscard]] std::unique_ptr<Repository> make_local_repository(Path folder, FileSystem& files,
                                                                LinkRule links = LinkRule::followed);

/// `version`: identifies the content; nullopt: use size and modification time. Errors: those of FileSystem::open_read.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_local_source(FileSystem& files, const Path& path,
                                                                    std::optional<std::string> version = std::nullopt);

}  // namespace dspack::format
