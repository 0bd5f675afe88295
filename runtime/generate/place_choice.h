// Which free place a prompt gets. What it has in common with any place is copied, so that only what is lost counts:
// a conversation goes on where it was, and another one takes the place whose conversation is computed again for least.
// So a few short ones (sub-agents, titles) take each other's places and leave that of the long conversation between
// whose turns they come, although that was unused for longer.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include <cstdint>
#include <span>

namespace dspack::runtime {

/// How a place was used by the conversation whose tokens it holds.
struct PlaceUse {
  uint32_t prompt = 0;       // tokens of its last prompt; an answer follows
  uint32_t turns = 0;        // prompts that went on with it, and the first
  uint32_t passed_over = 0;  // conversations that have taken other places since its last turn
  uint64_t used = 0;         // when; the least is the longest unused
};

struct PlaceState {
  bool is_free = true;
  std::span<const uint32_t> tokens = {};  // that it holds
  PlaceUse use = {};
};

/// A conversation that so many others have passed over is taken for ended.
inline constexpr uint32_t kMostPassedOver = 16;

/// Whether the prompt goes on with what the place holds: with all of its last prompt, but for the few tokens by which a
/// template lets an answer begin. What follows is then another answer to the same, or the same one written otherwise.
[[nodiscard]] bool goes_on(const PlaceState& place, std::span<const uint32_t> prompt);

/// The index of one of the free places, of which there must be one. An empty prompt goes on with nothing.
[[nodiscard]] size_t choose_place(std::span<const PlaceState> places, std::span<const uint32_t> prompt);

}  // namespace dspack::runtime
