// dsrun record DIR: what every module of the model reads and makes, as a safetensors file.
// Threads: plain values.
#pragma once

#include <string>
#include <vector>

#include "runtime/cli/traced_pass.h"

namespace dspack::runtime {

struct RecordOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;
  std::string out;
  std::vector<std::string> patterns;  // of modules; empty: all

  /// Errors: invalid, options that contradict each other, or nothing to run.
  [[nodiscard]] Result<void> complete();
};

}  // namespace dspack::runtime
