// Decides how many answers to compute at once if experts are read on demand. Answers that share a pass share experts,
// always-needed weights and latency. But each also has its own experts, and if memory does not hold them all, they
// evict each other's, and a token needs more reads. So this measures, for each number of answers in a pass, how many
// experts a token had to wait for (experts have one size, so that is bytes). Another answer begins if that is unknown,
// or no more than with one answer fewer. A measurement is trusted for kTrust passes.
// Threads: single-thread; a plain value. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

namespace dspack::runtime {

class Admission {
 public:
  explicit Admission(uint32_t places) : levels_(places + 1) {}

  /// Records a pass that read no prompt: it gave `tokens` tokens to `answers` answers, with `misses` expert misses.
  void record(uint32_t answers, uint32_t tokens, uint64_t misses);
  /// Whether another may begin beside `answers` answers. Precondition: a place is left.
  [[nodiscard]] bool admits(uint32_t answers) const;
  /// Recent expert misses per token with `answers` answers; 0: not known.
  [[nodiscard]] double misses_a_token(uint32_t answers) const;

  static constexpr uint32_t kEnough = 16;  // passes that make a measurement
  static constexpr uint64_t kTrust = 1024;
  /// Factor by which misses per token may rise, since they vary with the text.
  static constexpr double kSlack = 1.03;

 private:
  struct Level {
    double misses = 0, tokens = 0;  // decaying sums
    uint32_t passes = 0;
    uint64_t last = 0;  // pass
  };
  [[nodiscard]] bool is_known(uint32_t answers) const;

  std::vector<Level> levels_;  // by number of answers
  uint64_t passes_ = 0;
};

}  // namespace dspack::runtime
