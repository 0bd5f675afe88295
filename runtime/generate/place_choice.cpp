#include "runtime/generate/place_choice.h"

#include <algorithm>
#include <tuple>

#include "format/base/check.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMostBeginning = 3;  // tokens after the assistant's mark that begin an answer: "<think>\n"
constexpr uint32_t kMostTurns = 8;      // counted at most: more turns do not make a next one more likely

size_t common(std::span<const uint32_t> held, std::span<const uint32_t> prompt) {
  return static_cast<size_t>(std::ranges::mismatch(held, prompt).in1 - held.begin());
}

/// Expected cost of losing the place's conversation: tokens to compute, weighted by its turns, since more turns make a
/// next one more likely.
uint64_t loss(const PlaceState& place, std::span<const uint32_t> prompt) {
  if (place.use.passed_over >= kMostPassedOver) return 0;
  return (place.tokens.size() - common(place.tokens, prompt)) * std::min(place.use.turns, kMostTurns);
}

}  // namespace

bool goes_on(const PlaceState& place, std::span<const uint32_t> prompt) {
  const size_t shared = common(place.tokens, prompt);
  return shared > 0 && shared + std::min(kMostBeginning, place.use.prompt / 8) >= place.use.prompt;
}

size_t choose_place(std::span<const PlaceState> places, std::span<const uint32_t> prompt) {
  const auto rank = [&](const PlaceState& place) {
    const bool continues = goes_on(place, prompt);
    // The least wins. Among places whose conversation it continues: the one that shares most tokens.
    return std::tuple(!place.is_free, !continues,
                      continues ? prompt.size() - common(place.tokens, prompt) : loss(place, prompt), place.use.used);
  };
  const auto best = std::ranges::min_element(places, {}, rank);
  DSPACK_CHECK(best != places.end() && best->is_free, "no place is free");
  return static_cast<size_t>(best - places.begin());
}

}  // namespace dspack::runtime
