// config.json of a packed repository whose recipe turns the source into another model: without the MTP module, or with
// weights of another type. The source's own is kept beside it.
// Threads: pure except for reading config.json. Errors: not_found, invalid (no config.json, or one that cannot be
// changed), unsupported (a quantisation that the transforms do not know), conflict (the name for the source's own is
// taken).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/plan/plan.h"
#include "reshard/run/companions.h"

namespace dspack::reshard {

/// nullopt: the source's config.json also describes the result.
[[nodiscard]] Result<std::optional<std::string>> changed_config(const Plan& plan, format::Repository& source,
                                                                const std::stop_token& stop);

/// Renames the source's config.json among the companions, and hf_quant_config.json too if the plan decodes codes.
[[nodiscard]] Result<void> set_aside_config(std::vector<Companion>& companions, const Plan& plan,
                                            const format::Repository& source);

}  // namespace dspack::reshard
