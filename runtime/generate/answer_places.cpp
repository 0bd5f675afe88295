#include "runtime/generate/answer_places.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <vector>

#include "format/base/check.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMaxBeginning = 3;  // tokens after the assistant's mark that begin an answer: "<think>\n"
constexpr uint32_t kMaxTurns = 8;      // counted at most: more turns do not make a next one more likely

size_t common(std::span<const uint32_t> held, std::span<const uint32_t> prompt) {
  return static_cast<size_t>(std::ranges::mismatch(held, prompt).in1 - held.begin());
}

/// Expected cost of losing the place's conversation: tokens to compute, weighted by its turns, since more turns make a
/// next one more likely.
uint64_t loss(const PlaceState& place, std::span<const uint32_t> prompt) {
  if (place.use.passed_over >= kMaxPassedOver) return 0;
  return (place.tokens.size() - common(place.tokens, prompt)) * std::min(place.use.turns, kMaxTurns);
}

}  // namespace

bool goes_on(const PlaceState& place, std::span<const uint32_t> prompt) {
  const size_t shared = common(place.tokens, prompt);
  return shared > 0 && shared + std::min(kMaxBeginning, place.use.prompt / 8) >= place.use.prompt;
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

uint32_t AnswerPlaces::busy() const {
  return static_cast<uint32_t>(
      std::ranges::count_if(places_, [](const AnswerPlace& place) { return place.generation.has_value(); }));
}

uint32_t AnswerPlaces::busy(const std::string& client) const {
  return static_cast<uint32_t>(std::ranges::count_if(
      places_, [&](const AnswerPlace& place) { return place.generation && place.generation->client == client; }));
}

AnswerPlace& AnswerPlaces::choose(const Generation& generation) {
  std::vector<PlaceState> states;
  for (const AnswerPlace& place : places_)
    states.push_back({.is_free = !place.generation, .tokens = place.sequence.tokens(), .use = place.use});
  std::span<const uint32_t> prompt = generation.prompt;
  if (generation.scores_prompt) prompt = {};  // it continues no conversation
  const size_t index = choose_place(states, prompt);
  const bool is_other = !goes_on(states[index], prompt);
  if (is_other) {
    for (AnswerPlace& place : places_)
      if (!place.generation) ++place.use.passed_over;
  }
  AnswerPlace& chosen = places_[index];
  chosen.use = {.prompt = static_cast<uint32_t>(generation.prompt.size()),
                .turns = is_other ? 1 : chosen.use.turns + 1,
                .passed_over = 0,
                .used = chosen.use.used};
  return chosen;
}

uint32_t AnswerPlaces::begin_with_common(AnswerPlace& place) {
  const std::span<const uint32_t> prompt = place.generation->prompt;
  const bool is_scored = place.generation->scores_prompt;
  const uint32_t kept = is_scored ? 0 : kept_tokens(place.sequence.tokens(), prompt);
  if (cache_ != nullptr && kept < place.sequence.length()) keep(place.sequence);
  place.sequence.truncate(kept);
  if (is_scored) return 0;
  const uint32_t copied = take_from_others(place, prompt);
  if (cache_ != nullptr) cache_->restore(place.sequence, prompt.first(prompt.size() - 1));
  return copied;
}

uint32_t AnswerPlaces::take_from_others(AnswerPlace& place, std::span<const uint32_t> prompt) {
  const uint32_t before = place.sequence.length();
  for (const AnswerPlace& other : places_) {
    const uint32_t common = other.sequence.cut_point(kept_tokens(other.sequence.tokens(), prompt));
    if (&other != &place && common > place.sequence.length()) place.sequence.extend_from(other.sequence, common);
  }
  return place.sequence.length() - before;
}

bool AnswerPlaces::is_being_read_elsewhere(const AnswerPlace& place) const {
  if (place.generation->scores_prompt) return false;  // it reuses no rows
  return std::ranges::any_of(places_, [&place](const AnswerPlace& other) {
    if (&other == &place || !other.answer || !other.answer->is_reading() || other.arrived > place.arrived) return false;
    const uint32_t common = kept_tokens(other.answer->tokens(), place.answer->tokens());
    return common >= place.sequence.length() + (place.answer->lacking() + 1) / 2;
  });
}

void AnswerPlaces::keep(const Sequence& sequence) {
  try {
    cache_->keep(sequence);
  } catch (const std::bad_alloc&) {
    // The memory is needed more for running answers.
  }
}

void AnswerPlaces::forget(Sequence& sequence) {
  const std::vector<uint32_t> tokens(sequence.tokens().begin(), sequence.tokens().end());
  if (cache_ != nullptr) cache_->forget(tokens);
  sequence.truncate(0);
  for (AnswerPlace& other : places_)
    if (!other.generation && kept_tokens(other.sequence.tokens(), tokens) > 0) other.sequence.truncate(0);
}

}  // namespace dspack::runtime
