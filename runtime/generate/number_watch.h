// Finds the first module of a pass that computes infinity or NaN: used if a pass's logits cannot be chosen from, to
// name the module whose weights may be damaged.
// Threads: single-thread. Lifetime: borrows the queue. Errors: `status` is corrupt once something was found, which ends
// the pass.
#pragma once

#include <optional>
#include <string>

#include "runtime/weights/trace.h"

namespace dspack::runtime {

class NumberWatch final : public Trace {
 public:
  explicit NumberWatch(kernels::Queue& queue) : queue_(queue) {}

  [[nodiscard]] uint32_t tokens() const override { return 0; }  // each call's rows are checked at once
  void input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void routing(std::string_view /*module*/, const Routing& /*routing*/) override {}
  [[nodiscard]] Result<void> status() const override;

  /// For people: the first such module, and whether it computed or received the value; nullopt: all values were finite.
  [[nodiscard]] const std::optional<std::string>& finding() const { return finding_; }

 private:
  [[nodiscard]] bool are_finite(const kernels::Rows& rows) const;

  kernels::Queue& queue_;
  std::optional<std::string> finding_;
};

}  // namespace dspack::runtime
