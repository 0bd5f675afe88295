// The flags of dsrun plan.
// Threads: plain values. Errors: see options.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// dsrun plan DIR
struct PlanOptions {
  std::string folder;
  LoadOptions load;
  uint32_t prompt_tokens = 128;
  std::optional<double> hit_rate;  // of decode, in percent; unset: assumed
  bool json = false;
};

}  // namespace dspack::runtime
