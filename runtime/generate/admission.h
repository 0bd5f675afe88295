// How many answers are worth making at once where experts are read on demand. Answers that share a pass share experts,
// always-needed weights and latency; but each has experts of its own, and where memory does not hold those of all, they
// drive each other's out and a token costs more reads than before. So it is measured, for each number of answers in a
// pass, how many experts a token has had to wait for (they are of one size: that is bytes); one answer more begins as
// long as that is unknown or no more than with one fewer. What was found counts for kTrust passes.
// Threads: single-thread; a plain value. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

namespace dspack::runtime {

class Admission {
 public:
  explicit Admission(uint32_t places) : levels_(places + 1) {}

  /// A pass that read no prompt gave `tokens` to so many answers and missed so many experts.
  void record(uint32_t answers, uint32_t tokens, uint64_t misses);
  /// Whether one more may begin beside so many, fewer than the places.
  [[nodiscard]] bool admits(uint32_t answers) const;
  /// Experts that a token has missed lately with so many answers; 0 if that was not measured.
  [[nodiscard]] double misses_a_token(uint32_t answers) const;

  static constexpr uint32_t kEnough = 16;  // passes that tell something
  static constexpr uint64_t kTrust = 1024;
  /// By so much a token may cost more: measurements differ as texts do.
  static constexpr double kSlack = 1.03;

 private:
  struct Level {
    double misses = 0, tokens = 0;  // forgetting
    uint32_t passes = 0;
    uint64_t last = 0;  // pass
  };
  [[nodiscard]] bool is_known(uint32_t answers) const;

  std::vector<Level> levels_;  // by number of answers
  uint64_t passes_ = 0;
};

}  // namespace dspack::runtime
