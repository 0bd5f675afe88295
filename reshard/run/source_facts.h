// What a recipe needs to know of a source beyond its headers, looked up before the plan is made: how many layers the
// model has, which tensors are probably equal, which scales are powers of two.
// Threads: one call; up to `jobs` requests at a time. Memory: a buffer a job. Errors: invalid (layers that the model
// lacks, a config.json that does not tell their number), not_found (no config.json), and as the repository.
#pragma once

#include <stop_token>

#include "format/source/repository.h"
#include "reshard/plan/product.h"
#include "reshard/plan/recipe.h"

namespace dspack::reshard {

/// Decoder layers of the source, without the MTP module's, as its config.json says.
[[nodiscard]] Result<uint32_t> decoder_layers(format::Repository& source, const std::stop_token& stop);

/// The recipe with its layers as a LayerMap, or as it was if it names none; then nothing is read.
[[nodiscard]] Result<Recipe> resolve_layers(const Recipe& recipe, format::Repository& source,
                                            const std::stop_token& stop);

/// Reads nothing for a recipe that asks for nothing of it. scales_to_e8m0 reads the F32 scales of the weights that it
/// is for (160 MB of DeepSeek-V3).
[[nodiscard]] Result<SourceFacts> find_facts(const Recipe& recipe, const format::Checkpoint& source,
                                             format::Repository& repository, unsigned jobs,
                                             const std::stop_token& stop);

}  // namespace dspack::reshard
