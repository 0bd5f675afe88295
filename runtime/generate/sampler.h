// Chooses the next token from logits: greedily, or at random with temperature and nucleus (top-p).
//
// The random numbers depend on the seed alone: std::mt19937_64, whose sequence the standard fixes, seeded with `seed`;
// one draw a token, of which the upper 53 bits divided by 2^53 are the number in [0, 1). (The distributions of <random>
// differ from library to library and are not used.) Greedy choice draws nothing.
// Threads: belongs to one thread. Lifetime: logits are borrowed for the call. Errors: make: invalid (options); the
// rest: invalid (no logits, NaN or +infinity among them, or nothing but -infinity, which means: excluded).
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

struct SamplerOptions {
  double temperature = 0;  // finite, >= 0; 0 is greedy, whatever top_p says
  double top_p = 1;        // > 0, <= 1
  uint64_t seed = 0;
};

struct Candidate {
  uint32_t token = 0;
  double probability = 0;
};

class Sampler {
 public:
  [[nodiscard]] static Result<Sampler> make(const SamplerOptions& options);

  [[nodiscard]] Result<uint32_t> sample(std::span<const float> logits);

  /// What `sample` chooses from, with probabilities that sum to 1. Greedy: the highest logit, the lowest index among
  /// equals. Else softmax(logits / temperature); with top_p < 1 the smallest set of the likeliest tokens whose sum is
  /// at least top_p, likeliest first (lowest index first among equals); with top_p = 1 all tokens, in order of index.
  [[nodiscard]] Result<std::vector<Candidate>> distribution(std::span<const float> logits) const;

 private:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}
  [[nodiscard]] double next_uniform();

  SamplerOptions options_;
  std::mt19937_64 random_;
};

}  // namespace dspack::runtime
