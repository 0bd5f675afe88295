#include "runtime/generate/place_choice.h"

#include <algorithm>
#include <tuple>

#include "format/base/check.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMostBeginning = 3;  // tokens after the assistant's mark with which an answer begins: "<think>\n"
constexpr uint32_t kMostTurns = 8;      // that count: a conversation of many is no surer to go on

size_t common(std::span<const uint32_t> held, std::span<const uint32_t> prompt) {
  return static_cast<size_t>(std::ranges::mismatch(held, prompt).in1 - held.begin());
}

/// What it costs to lose the place's conversation: tokens to compute, the more likely the oftener it went on.
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
    // The least counts: of those that it goes on with the one that it has most in common with.
    return std::tuple(!place.is_free, !continues,
                      continues ? prompt.size() - common(place.tokens, prompt) : loss(place, prompt), place.use.used);
  };
  const auto best = std::ranges::min_element(places, {}, rank);
  DSPACK_CHECK(best != places.end() && best->is_free, "no place is free");
  return static_cast<size_t>(best - places.begin());
}

}  // namespace dspack::runtime
