// dsrun eval DIR: the perplexity of a text.
// Threads: plain values.
#pragma once

#include <string>

#include "runtime/cli/model_options.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

struct EvalOptions {
  std::string folder;
  LoadOptions load;
  std::string text_file;
  uint32_t stride = 0;    // 0: windows do not overlap
  std::string json_file;  // empty: none

  [[nodiscard]] Result<void> complete() { return check_model_options(load); }
};

}  // namespace dspack::runtime
