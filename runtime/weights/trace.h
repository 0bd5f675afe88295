// Reports the modules of a forward pass, under the names that Hugging Face implementations give them, with their input
// and output rows. Without a listener, tracing costs one null check.
// Threads: single-thread. Lifetime: a scope borrows its trace. Errors: a trace keeps its first one; see `status`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "format/base/result.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// Listens to a pass. A module's rows arrive in order, in one or several calls; `total_rows` is their number over all
/// calls: the tokens of the pass, or for a routed expert the tokens routed to it.
class Trace {
 public:
  virtual ~Trace() = default;
  /// Tokens of the whole pass, which goes through the model in one chunk.
  [[nodiscard]] virtual uint32_t tokens() const = 0;
  /// `rows` are the input of `module`, before it reads them. A listener may overwrite them: the module then reads the
  /// new values.
  virtual void input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) = 0;
  /// `rows` are the output of `module`.
  virtual void output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) = 0;

  /// A router's choice for some tokens, best first.
  struct Routing {
    kernels::Slice ids;      // u32 [rows, top_k]
    kernels::Slice weights;  // FP32 [rows, top_k]
    uint32_t rows = 0;
    uint32_t top_k = 0;
  };
  virtual void routing(std::string_view module, const Routing& routing) = 0;

  /// The listener's first error. The pass checks it after each layer, and ends.
  [[nodiscard]] virtual Result<void> status() const = 0;
};

/// A module's place in the pass: a trace, or none, and the module's full name.
class TraceScope {
 public:
  /// Without a listener.
  TraceScope() = default;
  /// `trace` may be null.
  TraceScope(Trace* trace, std::string_view name) : trace_(trace) {
    if (trace_ != nullptr) name_ = name;
  }

  [[nodiscard]] bool on() const { return trace_ != nullptr; }
  /// "<this>.<name>"
  [[nodiscard]] TraceScope child(std::string_view name) const {
    TraceScope inner;
    if (trace_ == nullptr) return inner;
    inner.trace_ = trace_;
    inner.name_.reserve(name_.size() + 1 + name.size());
    inner.name_.append(name_).append(1, '.').append(name);
    inner.total_rows_ = total_rows_;
    return inner;
  }
  /// This module and its children handle `rows` rows in all, not every token of the pass.
  void expect(uint32_t rows) { total_rows_ = rows; }

  void input(const kernels::Rows& rows) const {
    if (trace_ != nullptr) trace_->input(name_, rows, total_rows());
  }
  void output(const kernels::Rows& rows) const {
    if (trace_ != nullptr) trace_->output(name_, rows, total_rows());
  }
  void routing(const Trace::Routing& routing) const {
    if (trace_ != nullptr) trace_->routing(name_, routing);
  }

 private:
  [[nodiscard]] uint32_t total_rows() const { return total_rows_ == 0 ? trace_->tokens() : total_rows_; }

  Trace* trace_ = nullptr;
  std::string name_;
  uint32_t total_rows_ = 0;  // 0: every token of the pass
};

/// y = weight . x, as module `name` of `scope`.
inline void apply(const Linear& weight, kernels::Queue& queue, const kernels::Rows& x, const kernels::Rows& y,
                  const TraceScope& scope, std::string_view name) {
  const TraceScope module = scope.child(name);
  module.input(x);
  weight.apply(queue, x, y);
  module.output(y);
}

/// y = rms_norm(x) * gain, as module `name` of `scope`. y may be x. `readers`: weights that multiply y next.
inline void normalise(kernels::Queue& queue, const kernels::Rows& x, kernels::Slice gain, float epsilon,
                      const kernels::Rows& y, const TraceScope& scope, std::string_view name,
                      std::span<const kernels::Weight> readers = {}) {
  const TraceScope module = scope.child(name);
  module.input(x);
  queue.rms_norm_for(readers, x, gain, epsilon, y);
  module.output(y);
}

}  // namespace dspack::runtime
