// A repository one of whose small texts is another: a config.json that nobody here can edit, or one that is known
// already and need not be asked for again. Threads: as a Repository. Lifetime: owns the repository. Errors: those of
// the repository; of the text, what it is.
#pragma once

#include <memory>
#include <string>

#include "format/source/repository.h"

namespace dspack::format {

/// `stored`, but that reading the text of `path` gives `text`. `place`: of that, for people.
[[nodiscard]] std::unique_ptr<Repository> replace_text(std::unique_ptr<Repository> stored, std::string path,
                                                       Result<std::string> text, std::string place);

}  // namespace dspack::format
