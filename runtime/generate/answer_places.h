// The places of a scheduler's answers, each with a KV cache: which one a generation gets, and what its prompt has in
// common with what all of them hold, or the prefix cache.
// Threads: single-thread. Lifetime: borrows the prefix cache. Errors: none of its own; it throws where there is no
// memory.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "runtime/generate/generation.h"
#include "runtime/generate/place_choice.h"
#include "runtime/generate/prefix_cache.h"

namespace dspack::runtime {

struct AnswerPlace {
  Sequence sequence;
  std::optional<Speculator> speculator = {};
  std::optional<Generation> generation = {};
  std::optional<Continuation> answer = {};  // of the generation
  uint64_t arrived = 0;                     // when its generation came
  PlaceUse use = {};                        // by conversations so far
};

class AnswerPlaces {
 public:
  /// `cache`: of what places held that others took; nullptr: that is lost.
  explicit AnswerPlaces(PrefixCache* cache) : cache_(cache) {}
  [[nodiscard]] std::deque<AnswerPlace>& all() { return places_; }
  [[nodiscard]] const std::deque<AnswerPlace>& all() const { return places_; }

  /// Those that have a generation; those that have one of this client.
  [[nodiscard]] uint32_t busy() const;
  [[nodiscard]] uint32_t busy(const std::string& client) const;

  /// A free one, of which there must be one (place_choice.h); it counts as used from now on.
  [[nodiscard]] AnswerPlace& choose(const Generation& generation);
  /// Leaves in the place what its generation's prompt begins with, as much as there is anywhere; nothing of one that is
  /// scored, since a cache has no logits. Returns how much came from other places.
  uint32_t begin_with_common(AnswerPlace& place);
  /// What any other place holds of `prompt`, with which the place's sequence begins; returns how much that is.
  uint32_t take_from_others(AnswerPlace& place, std::span<const uint32_t> prompt);
  /// Whether an earlier prompt that is being read has at least half of what this one lacks.
  [[nodiscard]] bool is_being_read_elsewhere(const AnswerPlace& place) const;
  /// In the cache, which there must be. What cannot be kept for want of memory is computed again.
  void keep(const Sequence& sequence);
  /// Of a sequence that ends with its prompt. Where its cache has rings, nothing goes on from there any more once the
  /// answer is long.
  void keep_prompt(const Sequence& sequence) {
    if (cache_ != nullptr && sequence.cache().shape().has_rings()) keep(sequence);
  }
  /// Rows that gave no probabilities, wherever they have come from, are not kept, nor gone on from: not by this place,
  /// and not by others that may have them from it or from the same file.
  void forget(Sequence& sequence);

 private:
  PrefixCache* cache_;
  std::deque<AnswerPlace> places_;
};

}  // namespace dspack::runtime
