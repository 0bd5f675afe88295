// A recipe's choice of layers, made definite for a source: what its config.json says about their number.
// Threads: no state. Errors: invalid (layers that the model lacks, a config.json that does not tell their number),
// not_found (no config.json), those of reading it.
#pragma once

#include <stop_token>

#include "format/source/repository.h"
#include "reshard/plan/recipe.h"

namespace dspack::reshard {

/// Decoder layers of the source, without the MTP module's, as its config.json says.
[[nodiscard]] Result<uint32_t> decoder_layers(format::Repository& source, const std::stop_token& stop);

/// The recipe with its layers as a LayerMap, or as it was if it names none; then nothing is read.
[[nodiscard]] Result<Recipe> resolve_layers(const Recipe& recipe, format::Repository& source,
                                            const std::stop_token& stop);

}  // namespace dspack::reshard
