// A packed repository presented as the checkpoint that it was made from: its source shards, put together from packed
// tensors as they are read, and its other files under their original names. Packing it gives the same result as packing
// the source.
// Threads: as a Repository. Lifetime: owns the packed repository. Memory: the kept headers. Errors: those of
// source_shards (unsupported: a recipe that left out or converted weights), and of reading; files that are read whole
// are compared with the digest in the manifest.
#pragma once

#include <memory>
#include <stop_token>

#include "format/source/repository.h"

namespace dspack::reshard {

/// Returns `place` itself unless it is a packed repository. `jobs`: headers read at a time.
[[nodiscard]] Result<std::unique_ptr<format::Repository>> as_source(std::unique_ptr<format::Repository> place,
                                                                    unsigned jobs, const std::stop_token& stop);

}  // namespace dspack::reshard
