// Makes up the routes of a model of DeepSeek-V3's shape with the locality that was published for models of its kind, to
// judge eviction policies where no recorded routes are at hand. An expert's score for a token is a sum of parts that
// live for different times; group-limited top-k picks from it, as the router of V3 does:
//   topic   drifts over hundreds of tokens: the hot experts of a text, while in the long run all are used alike
//   recent  drifts over a few tokens: the previous token's experts come again
//   word    the token itself, from a Zipf-distributed vocabulary: the same word picks the same experts
//   noise   the rest
// Not modelled: relations between layers other than the word, which real models have.
// Threads: single-thread. Equal seeds give equal routes on one platform's math library.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace dspack::bench {

/// Shares of a score's variance; the noise has what is left of 1. Times in tokens.
struct RouteProfile {
  std::string_view name;
  double topic = 0;
  double topic_tokens = 0;
  double recent = 0;
  double recent_tokens = 0;
  double word_first = 0;  // in the first layer; falls evenly to word_last
  double word_last = 0;
  double bias = 0;            // what never changes: long-run skew
  uint32_t conversation = 0;  // tokens after which another topic begins
};

struct RouteShape {
  uint32_t layers = 58;
  uint32_t experts = 256;
  uint32_t top_k = 8;
  uint32_t groups = 8;
  uint32_t top_groups = 4;
};

class RouteGenerator {
 public:
  RouteGenerator(const RouteShape& shape, const RouteProfile& profile, uint64_t seed);

  /// The next token's experts, [layers, top_k], best first. Valid until the next call.
  [[nodiscard]] std::span<const uint16_t> next();
  /// Of that token's scores the parts that last, [layers, experts]: what a run cannot see.
  [[nodiscard]] std::span<const float> lasting() const { return lasting_; }

 private:
  [[nodiscard]] float normal();
  [[nodiscard]] uint32_t next_word();
  void begin_topic();
  void route(uint32_t layer);

  RouteShape shape_;
  RouteProfile profile_;
  uint64_t state_;
  uint64_t words_seed_;
  uint64_t tokens_ = 0;
  std::vector<double> word_shares_;                              // cumulated
  std::vector<float> bias_, topic_, recent_, lasting_, scores_;  // [layers, experts]; scores_ [experts]
  std::vector<uint16_t> routes_;
};

/// The profiles that were calibrated; see docs/lab/2026-11-experts.md.
[[nodiscard]] std::span<const RouteProfile> route_profiles();

}  // namespace dspack::bench
