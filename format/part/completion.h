// A whole model's catalogue out of a packed part of it and the checkpoint that the part was made from: what the part
// holds is read there, and what it lacks from the other.
// Threads: thread-safe (pure functions). Lifetime: values; indices refer to the two catalogues that were given.
// Errors: invalid (the two are not of one checkpoint), naming the tensor.
#pragma once

#include <optional>
#include <vector>

#include "format/checkpoint.h"

namespace dspack::format {

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
