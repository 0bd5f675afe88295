// A packed repository as the checkpoint that it was made from: its source's shards, put together of packed tensors
// while they are read, and its other files under the names that they had. What is made of it is what would be made of
// the source itself. Threads: as a Repository. Lifetime: owns the packed repository. Memory: the kept headers. Errors:
// those of source_shards (unsupported: a recipe that left out or converted weights), and of reading; what is read whole
// is compared with the digest that the manifest records.
#pragma once

#include <memory>
#include <stop_token>

#include "format/source/repository.h"

namespace dspack::reshard {

/// `place` itself, unless it is a packed repository. `jobs`: headers that are read at the same time.
[[nodiscard]] Result<std::unique_ptr<format::Repository>> as_source(std::unique_ptr<format::Repository> place,
                                                                    unsigned jobs, const std::stop_token& stop);

}  // namespace dspack::reshard
