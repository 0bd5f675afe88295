// config.json of a packed repository whose recipe makes another model of the source: without the MTP module, or with
// weights of another type. The source's own is kept beside it.
// Threads: pure but for reading config.json. Errors: not_found, invalid (no config.json, or none that can be changed),
// unsupported (it describes a quantisation that the transforms do not know), conflict (the name for the source's own is
// taken).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/plan/plan.h"
#include "reshard/run/companions.h"

namespace dspack::reshard {

/// nullopt: the source's config.json describes the result as well.
[[nodiscard]] Result<std::optional<std::string>> changed_config(const Plan& plan, format::Repository& source,
                                                                const std::stop_token& stop);

/// Gives the source's config.json its other name among the companions, and another description of codes where none are
/// left.
[[nodiscard]] Result<void> set_aside_config(std::vector<Companion>& companions, const Plan& plan,
                                            const format::Repository& source);

}  // namespace dspack::reshard
