// What a recipe needs to know of a source beyond its headers, looked up before the plan is made.
// Threads: one call; up to `jobs` requests at a time. Memory: a buffer a job. Errors: as the repository; those of
// decoder_layers.
#pragma once

#include <stop_token>

#include "reshard/plan/product.h"

namespace dspack::reshard {

/// Reads nothing for a recipe that asks for nothing of it. scales_to_e8m0 reads the F32 scales of the weights that it
/// is for (160 MB of DeepSeek-V3).
[[nodiscard]] Result<SourceFacts> find_facts(const Recipe& recipe, const format::Checkpoint& source,
                                             format::Repository& repository, unsigned jobs,
                                             const std::stop_token& stop);

}  // namespace dspack::reshard
