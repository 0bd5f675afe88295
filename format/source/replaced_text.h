// A repository in which the text of one small file is replaced: a config.json that the user cannot edit there, or one
// that is already known and need not be requested again. Threads: as a Repository. Lifetime: owns the repository.
// Errors: those of the repository; for the text, the one that it holds.
#pragma once

#include <memory>
#include <string>

#include "format/source/repository.h"

namespace dspack::format {

/// `stored`, except that reading the text of `path` returns `text`. `place`: where the text is from, for people.
[[nodiscard]] std::unique_ptr<Repository> replace_text(std::unique_ptr<Repository> stored, std::string path,
                                                       Result<std::string> text, std::string place);

}  // namespace dspack::format
