// dsrun compare DIR: the model's modules against a recording of them.
// Threads: plain values.
#pragma once

#include <optional>
#include <string>

#include "runtime/cli/traced_pass.h"

namespace dspack::runtime {

struct CompareOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;  // none: those of the recording
  std::string reference;
  std::optional<double> tolerance;
  bool inject = false;
  std::string json_file;  // empty: none

  [[nodiscard]] Result<void> complete();
};

}  // namespace dspack::runtime
