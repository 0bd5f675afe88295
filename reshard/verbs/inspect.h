// `reshard inspect SOURCE`: what a checkpoint holds, for people or line by line for programs.
// Threads: pure functions.
#pragma once

#include <string>

#include "format/checkpoint.h"

namespace dspack::reshard {

/// Totals by role and by layer, and the layer map if there is one.
[[nodiscard]] std::string inspect_text(const format::Checkpoint& checkpoint, const format::Repository& repository);

/// One JSON object a line and tensor: name, dtype, shape, url or file, range [begin, end) in that file.
[[nodiscard]] std::string inspect_json(const format::Checkpoint& checkpoint, const format::Repository& repository);

}  // namespace dspack::reshard
