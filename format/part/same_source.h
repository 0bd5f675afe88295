// Whether a place has the checkpoint that a part of a model was made from: a model of the same shape has the same names
// and offsets, so what is compared goes beyond them as far as the place allows.
// Threads: thread-safe (pure functions). Errors: invalid, with the first difference.
#pragma once

#include <vector>

#include "format/checkpoint.h"
#include "format/json.h"

namespace dspack::format {

/// Compares the shards that the part's manifest names with those at the other place: paths, sizes, headers
/// (`kept_headers`: read_kept_headers of the part), and their SHA-256 where both sides know it: the part of shards that
/// were read whole, the place (`versions_are_digests`: the Hub) of all. A packed repository as the other place has
/// the same source, by its manifest and the digest of the headers that it keeps, and not another commit where there are
/// no witnesses.
[[nodiscard]] Result<void> compare_sources(const Checkpoint& part, const Json& kept_headers, const Checkpoint& other,
                                           bool versions_are_digests);

/// A tensor that both have as it was released, and whose bytes in the part have this digest.
struct Witness {
  uint32_t tensor = 0;  // index in the other's catalogue
  Digest digest;
};
/// Some small ones, from the whole length of the model; those of no expert first. Empty: both have no such tensor.
[[nodiscard]] std::vector<Witness> witnesses(const Checkpoint& part, const Checkpoint& other);

}  // namespace dspack::format
