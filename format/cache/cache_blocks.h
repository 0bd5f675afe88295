// Which tensors a cache keeps in blocks of rows, because they are read by rows.
// Threads: pure functions.
#pragma once

#include <optional>

#include "format/checkpoint.h"
#include "format/digest.h"

namespace dspack::format {

/// Rows per block of a tensor that is read by rows: embeddings, and heads that may be copies of other tensors. 0: it is
/// read as a whole. The manifest of a packed origin decides itself which tensors have blocks.
[[nodiscard]] uint64_t rows_per_cache_block(const Checkpoint& catalogue, uint32_t tensor);

/// The digest of a block in the origin's manifest; nullopt: it has none.
[[nodiscard]] std::optional<Digest> declared_block(const Checkpoint& catalogue, uint32_t tensor, uint64_t block);

}  // namespace dspack::format
