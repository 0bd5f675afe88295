// Looks up the facts about a source that a recipe needs beyond its headers, before the plan is made: how many layers
// the model has, which tensors are probably equal, which scales are powers of two.
// Threads: one call; up to `jobs` requests at a time. Memory: one buffer per job. Errors: invalid (layers that the
// model lacks, a config.json without their number), not_found (no config.json), and as the repository.
#pragma once

#include <stop_token>

#include "format/source/repository.h"
#include "reshard/plan/product.h"
#include "reshard/plan/recipe.h"

namespace dspack::reshard {

/// Number of decoder layers according to the source's config.json, without the MTP module's.
[[nodiscard]] Result<uint32_t> decoder_layers(format::Repository& source, const std::stop_token& stop);

/// The recipe with its layers as a LayerMap. Unchanged, and without reading, if it names none.
[[nodiscard]] Result<Recipe> resolve_layers(const Recipe& recipe, format::Repository& source,
                                            const std::stop_token& stop);

/// Reads only what the recipe needs. scales_to_e8m0 reads the F32 scales of the weights that it applies to (160 MB for
/// DeepSeek-V3).
[[nodiscard]] Result<SourceFacts> find_facts(const Recipe& recipe, const format::Checkpoint& source,
                                             format::Repository& repository, unsigned jobs,
                                             const std::stop_token& stop);

}  // namespace dspack::reshard
