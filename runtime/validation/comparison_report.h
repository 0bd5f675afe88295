// A comparison as text for people and as JSON for programs.
// Threads: thread-safe (pure functions). Errors: none.
#pragma once

#include <string>

#include "format/json.h"
#include "runtime/validation/comparison.h"

namespace dspack::runtime {

/// A table with a line for each module, then the verdict; control characters in names are made visible.
[[nodiscard]] std::string report_text(const Comparison& comparison);

/// The whole comparison. Infinite values are null.
[[nodiscard]] format::Json report_json(const Comparison& comparison);

}  // namespace dspack::runtime
