// Limits the bytes of experts that a prompt reads: reports the estimate before a cold prompt, and refuses one above the
// user's limit. The bytes are those of routed experts read from disk or network from a prompt's first pass to the end
// of its answer, repeated reads included. The store ends a run whose reads exceed the limit.
// Threads: single-thread. Lifetime: borrows the model. Errors: budget.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "runtime/experts/fetch_outlook.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

class FetchGuard {
 public:
  /// `say` receives a line about a prompt that will take a while.
  FetchGuard(LoadedModel& loaded, std::function<void(const std::string&)> say)
      : loaded_(loaded), say_(std::move(say)) {}

  /// Call before a prompt of which `tokens` tokens will be computed. Errors: budget.
  [[nodiscard]] Result<void> begin_prompt(uint64_t tokens);

 private:
  LoadedModel& loaded_;
  std::function<void(const std::string&)> say_;
};

/// Whether a prompt of `tokens` tokens may read the bytes in `outlook`; `most`: the limit. Errors: budget, with both
/// figures.
[[nodiscard]] Result<void> check_outlook(const FetchOutlook& outlook, uint64_t tokens, std::optional<uint64_t> most);

/// "reading about 3.2 GB of experts for 120 tokens, 4.0 s at 800 MB/s"; empty if that is too little to mention. `rate`:
/// bytes per second, if known.
[[nodiscard]] std::string outlook_line(const FetchOutlook& outlook, uint64_t tokens, std::optional<double> rate);

}  // namespace dspack::runtime
