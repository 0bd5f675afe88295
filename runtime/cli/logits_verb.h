// dsrun logits DIR: the logits after every token, as a safetensors file.
// Threads: plain values.
#pragma once

#include <string>

#include "runtime/cli/model_options.h"
#include "runtime/cli/prompt.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

struct LogitsOptions {
  std::string folder;
  LoadOptions load;
  TokenArgument tokens;
  std::string out;
  uint32_t chunk = 0;  // tokens at once; 0: as many as fit
  std::string stats_file;

  [[nodiscard]] Result<void> complete() { return check_model_options(load); }
};

}  // namespace dspack::runtime
