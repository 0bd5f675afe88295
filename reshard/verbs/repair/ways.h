// The ways of missing tensors from a source into their files.
// Threads: pure functions. Errors: not_found, invalid (the source does not hold what is missing), named.
#pragma once

#include "reshard/verbs/repair/damage.h"

namespace dspack::reshard {

/// Copies of what is missing alone; `file` and `slot` of each are those of `wanted`. `full`: the ways of all that the
/// repository holds, wherever that plan puts it. `place`: the source, for errors.
[[nodiscard]] Result<Plan> ways_from_source(const Plan& full, const WantedFiles& wanted,
                                            const std::vector<FileDamage>& damage, const std::string& place);

/// From another packed repository, grouped in whatever way, whose digests say that it has the same bytes.
[[nodiscard]] Result<Plan> ways_from_packed(const format::Checkpoint& source, const WantedFiles& wanted,
                                            const std::vector<FileDamage>& damage, const std::string& place);

}  // namespace dspack::reshard
