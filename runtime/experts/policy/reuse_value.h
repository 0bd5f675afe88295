// The value of keeping an expert, learned during the run. An expert's state is how many tokens ago it was last used and
// how often lately; its value is the mean of g^t, where t is the number of tokens until the next use and g < 1: 1 if
// the next token needs it, nearly 0 if it is not needed for long. Each token gives an example for every expert seen so
// far, in a slot or not: V3 gives 15,000 examples per token, so that a table of some hundred states is learned within a
// few tokens (temporal-difference learning, Sutton 1988). Threads: single-thread. Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dspack::runtime {

/// How an expert has been used, in tokens of its layer.
struct UseHistory {
  uint64_t last = 0;    // the token that used it last, counted from 1; 0: none has
  float frequency = 0;  // share of tokens that use it, each weighted by exp(-age / 128)
};

/// Decay of the frequency per token.
inline constexpr float kFrequencyStep = 1.0F / 128.0F;

class ReuseValue {
 public:
  static constexpr double kDiscount = 0.8;  // g
  static constexpr uint32_t kAges = 24;
  static constexpr uint32_t kFrequencies = 12;

  ReuseValue();

  using State = uint16_t;
  /// The state before token `now` of a history whose last use came before it.
  [[nodiscard]] static State state_of(const UseHistory& history, uint64_t now);
  [[nodiscard]] float value(State state) const { return values_[state].mean; }
  /// A token came while the expert was in `state`. `used`: it used the expert; else that is now in state `next`.
  void learn(State state, bool used, State next);

 private:
  struct Estimate {
    float mean = 0;
    uint32_t examples = 0;
  };
  std::array<Estimate, size_t{kAges} * kFrequencies> values_;
};

}  // namespace dspack::runtime
