// What a checkpoint seems to have lost: experts and layers of one model are alike, so that one without a tensor that all
// the others have is most likely damaged (a shard that was not saved, a download cut short).
// Threads: thread-safe (pure functions). Errors: none; what is said is for people, and decides nothing.
#pragma once

#include <string>
#include <vector>

#include "format/checkpoint.h"

namespace dspack::format {

/// A sentence for each kind of loss, naming the first one: an expert without a tensor that its layer's others have, a
/// layer with fewer experts than the largest number in it says or with a gap in the layers' numbers, a layer with
/// experts without a tensor that all other such layers have. Empty: nothing looks lost.
[[nodiscard]] std::vector<std::string> missing_parts(const Checkpoint& checkpoint);

}  // namespace dspack::format
