// A whole model's catalogue out of a packed part of it and the checkpoint that the part was made from: what the part
// holds is read there, and what it lacks from the other. And whether a place has that checkpoint: a model of the same
// shape has the same names and offsets, so what is compared goes beyond them as far as the place allows.
// Threads: thread-safe (pure functions). Lifetime: values; indices refer to the two catalogues that were given.
// Errors: invalid (the two are not of one checkpoint), with the first difference.
#pragma once

#include <optional>
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

/// Whether the catalogue is of a packed repository that holds a part of a model.
[[nodiscard]] bool is_part(const Checkpoint& checkpoint);

struct Completion {
  Checkpoint catalogue;          // files: those of the part, then those of the whole
  std::vector<uint32_t> own;     // by tensor of `catalogue`: its index in the catalogue that it comes from
  std::vector<uint32_t> absent;  // ascending: indices in the whole's catalogue of what comes from there
};

/// Tensors of the part, and of the whole those that it lacks by name. Two things are not lacking: the scale of a weight
/// that a transform has converted, and layers from `end_layer` on (nullopt: there is no such bound), for a recipe that
/// drops them. An expert comes from one of the two: of which the part has some tensors and not all, all come from the
/// whole.
[[nodiscard]] Result<Completion> complete(const Checkpoint& part, const Checkpoint& whole,
                                          std::optional<uint32_t> end_layer);

}  // namespace dspack::format
