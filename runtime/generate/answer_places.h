// The places of a scheduler's answers, each with a KV cache: chooses the place of a generation, and reuses the rows
// that places or the prefix cache already have of its prompt.
// Threads: single-thread. Lifetime: borrows the prefix cache. Errors: none of its own; throws if memory is short.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "runtime/generate/generation.h"
#include "runtime/generate/prefix_cache.h"

namespace dspack::runtime {

/// How a place was used by the conversation whose tokens it holds.
struct PlaceUse {
  uint32_t prompt = 0;       // tokens of its last prompt; its answer follows
  uint32_t turns = 0;        // its prompts: the first and those that continued it
  uint32_t passed_over = 0;  // conversations that took other places since its last turn
  uint64_t used = 0;         // order of its last use; the least is the longest unused
};

struct PlaceState {
  bool is_free = true;
  std::span<const uint32_t> tokens = {};  // tokens of its sequence
  PlaceUse use = {};
};

/// After this many other conversations, a conversation counts as ended.
inline constexpr uint32_t kMaxPassedOver = 16;

/// Whether the prompt continues the place's conversation: shares all of its last prompt, except the few tokens with
/// which a template begins an answer. The rest may be another answer to the same prompt, or the same one written
/// differently.
[[nodiscard]] bool goes_on(const PlaceState& place, std::span<const uint32_t> prompt);

/// The index of the free place that a prompt gets. Rows that it shares with any place are copied, so only what is lost
/// counts: a conversation continues where it was, and another one takes the place whose conversation is cheapest to
/// compute again. So short ones (sub-agents, titles) reuse each other's places, and not that of the long conversation
/// between whose turns they come, although it was unused for longer. Precondition: one is free. An empty prompt
/// continues none.
[[nodiscard]] size_t choose_place(std::span<const PlaceState> places, std::span<const uint32_t> prompt);

struct AnswerPlace {
  Sequence sequence;
  std::optional<Speculator> speculator = {};
  std::optional<Generation> generation = {};
  std::optional<Continuation> answer = {};  // the generation's
  uint64_t arrived = 0;                     // when its generation arrived
  PlaceUse use = {};                        // by the conversation in it
};

class AnswerPlaces {
 public:
  /// `cache`: keeps the rows of conversations whose place is reused; nullptr: they are dropped.
  explicit AnswerPlaces(PrefixCache* cache) : cache_(cache) {}
  [[nodiscard]] std::deque<AnswerPlace>& all() { return places_; }
  [[nodiscard]] const std::deque<AnswerPlace>& all() const { return places_; }

  /// Number of places that have a generation; that have one of this client.
  [[nodiscard]] uint32_t busy() const;
  [[nodiscard]] uint32_t busy(const std::string& client) const;

  /// Chooses a free place (choose_place), and counts it as used. Precondition: one is free.
  [[nodiscard]] AnswerPlace& choose(const Generation& generation);
  /// Makes the place's sequence the longest prefix of its generation's prompt that any place or the cache has; empty if
  /// the prompt is scored, since no cache has logits. Returns the number of tokens copied from other places.
  uint32_t begin_with_common(AnswerPlace& place);
  /// Extends the place's sequence, a prefix of `prompt`, by what other places hold of `prompt`; returns by how many
  /// tokens.
  uint32_t take_from_others(AnswerPlace& place, std::span<const uint32_t> prompt);
  /// Whether an earlier prompt that is being read shares at least half of the tokens that this one lacks.
  [[nodiscard]] bool is_being_read_elsewhere(const AnswerPlace& place) const;
  /// Keeps the sequence in the cache. Precondition: there is a cache. If memory is short, it is not kept, and is
  /// computed again.
  void keep(const Sequence& sequence);
  /// Keeps a sequence that ends with its prompt, if its cache has rings: after a long answer nothing could continue
  /// from the prompt's end.
  void keep_prompt(const Sequence& sequence) {
    if (cache_ != nullptr && sequence.cache().shape().has_rings()) keep(sequence);
  }
  /// Drops rows that gave no probabilities: from the cache, this place, and free places that may have them from here or
  /// from the same file.
  void forget(Sequence& sequence);

 private:
  PrefixCache* cache_;
  std::deque<AnswerPlace> places_;
};

}  // namespace dspack::runtime
