// What a recipe's transforms have cost in accuracy, as the manifest tells it.
// Threads: pure functions.
#pragma once

#include <vector>

#include "format/json.h"
#include "reshard/run/packed_writer.h"

namespace dspack::reshard {

/// {"attention":{"tensors":N,"relative_rms":X,"worst":{"name":"...","relative_rms":Y}},...} over the tensors that a
/// conversion has rounded: sqrt(sum of squared errors / sum of squared values). null: none was.
[[nodiscard]] format::Json rounding_errors(const Plan& plan, const std::vector<FileDigests>& digests);

}  // namespace dspack::reshard
