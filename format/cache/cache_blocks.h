// Tensors that a cache keeps in blocks of rows, because they are read by rows.
// Threads: pure functions.
#pragma once

#include <optional>

#include "format/checkpoint.h"
#include "format/digest.h"

namespace dspack::format {

/// Rows of a block of a tensor that is read by rows and not as a whole: embeddings, and heads that may be a copy of
/// another. 0: it is read as a whole. A packed origin says itself which tensors have blocks.
[[nodiscard]] uint64_t rows_per_cache_block(const Checkpoint& catalogue, uint32_t tensor);

/// What the origin's manifest says of a block; nullopt: nothing.
[[nodiscard]] std::optional<Digest> declared_block(const Checkpoint& catalogue, uint32_t tensor, uint64_t block);

}  // namespace dspack::format
