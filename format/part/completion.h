// Builds a whole model's catalogue from a packed part and the checkpoint that the part was made from: tensors of the
// part are read there, the others from the checkpoint. Also checks that a place has that checkpoint: models of the same
// shape have the same names and offsets, so the comparison goes beyond them as far as the place allows.
// Threads: thread-safe (pure functions). Lifetime: values; indices refer to the two given catalogues.
// Errors: invalid (the two are not of one checkpoint), with the first difference.
#pragma once

#include <optional>
#include <vector>

#include "format/checkpoint.h"
#include "format/json.h"

namespace dspack::format {

/// Compares the shards that the part's manifest names with those at the other place: paths, sizes, headers
/// (`kept_headers`: read_kept_headers of the part), and their SHA-256 if both sides have it: the part for shards that
/// were read whole, the place (`versions_are_digests`: the Hub) for all. If the other place is a packed repository, it
/// must have the same source, by its manifest and the digest of the headers that it keeps, and, if there are no
/// witnesses, the same commit if both name one.
[[nodiscard]] Result<void> compare_sources(const Checkpoint& part, const Json& kept_headers, const Checkpoint& other,
                                           bool versions_are_digests);

/// A tensor that both have in the same form, and the digest of its bytes in the part.
struct Witness {
  uint32_t tensor = 0;  // index in the other's catalogue
  Digest digest;
};
/// Up to sixteen small ones, spread over the whole model; tensors of experts only if there are no others. Empty: both
/// have no such tensor in common.
[[nodiscard]] std::vector<Witness> witnesses(const Checkpoint& part, const Checkpoint& other);

/// Whether the catalogue is that of a packed repository that holds a part of a model.
[[nodiscard]] bool is_part(const Checkpoint& checkpoint);

struct Completion {
  Checkpoint catalogue;          // files: those of the part, then those of the whole
  std::vector<uint32_t> own;     // by tensor of `catalogue`: its index in the catalogue that it comes from
  std::vector<uint32_t> absent;  // ascending: indices in the whole's catalogue of the tensors taken from there
};

/// The tensors of the part, and those of the whole that the part lacks by name. Not counted as lacking: the scale of a
/// weight that a transform has converted, and layers from `end_layer` on (nullopt: no bound), for a recipe that drops
/// them. An expert comes from one of the two: if the part has only some of its tensors, all come from the whole.
[[nodiscard]] Result<Completion> complete(const Checkpoint& part, const Checkpoint& whole,
                                          std::optional<uint32_t> end_layer);

}  // namespace dspack::format
