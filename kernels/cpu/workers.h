// The threads of one CPU device: a private arena that splits ranges into equal parts.
// Threads: thread-safe. Errors: none. Results do not depend on the split: every item is computed independently.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace dspack::kernels {

class Workers {
 public:
  /// `threads` = 0: one per core available to this process.
  explicit Workers(unsigned threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  [[nodiscard]] unsigned threads() const { return threads_; }

  /// Calls body(begin, end) for parts that cover [0, items), at most one part per thread, and waits for all of them.
  /// `item_cost` is the work of one item in multiply-adds: small work stays on the calling thread.
  void split(uint32_t items, uint64_t item_cost, const std::function<void(uint32_t, uint32_t)>& body);

 private:
  struct Arena;
  unsigned threads_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace dspack::kernels
