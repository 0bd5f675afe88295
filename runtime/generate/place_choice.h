// Chooses the free place that a prompt gets. Rows that it shares with any place are copied, so only what is lost
// counts: a conversation continues where it was, and another one takes the place whose conversation is cheapest to
// compute again. So short ones (sub-agents, titles) reuse each other's places, and not that of the long conversation
// between whose turns they come, although it was unused for longer.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include <cstdint>
#include <span>

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
inline constexpr uint32_t kMostPassedOver = 16;

/// Whether the prompt continues the place's conversation: shares all of its last prompt, except the few tokens with
/// which a template begins an answer. The rest may be another answer to the same prompt, or the same one written
/// differently.
[[nodiscard]] bool goes_on(const PlaceState& place, std::span<const uint32_t> prompt);

/// The index of the chosen place. Precondition: one is free. An empty prompt continues none.
[[nodiscard]] size_t choose_place(std::span<const PlaceState> places, std::span<const uint32_t> prompt);

}  // namespace dspack::runtime
