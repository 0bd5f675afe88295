// Decides which expert leaves a slot when another one needs it. Caches and the replay of recorded routes use the same
// interface, so the results of a replay hold for a run.
// Threads: single-thread. Lifetime: self-contained. Errors: none except find_policy's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "format/base/ids.h"
#include "format/base/result.h"

namespace dspack::runtime {

/// Packs a key into one number, for hash tables.
[[nodiscard]] constexpr uint64_t packed(ExpertKey key) {
  return uint64_t{key.layer.value} << 32U | key.expert.value;
}

/// The kind of a pass. A prefill computes many tokens at once and reads each expert once; a decode pass computes one
/// token, or a few with drafts.
enum class Phase { prefill, decode };
inline constexpr size_t kPhases = 2;

/// One use of an expert. Passes ascend; within a pass, layers ascend except for a layer map's repetitions.
struct ExpertUse {
  ExpertKey key;
  uint64_t pass = 0;
  Phase phase = Phase::decode;
  uint32_t rows = 1;      // tokens of the pass that are routed to it
  uint32_t last_row = 0;  // the last of these tokens, counted from the pass's end: 0 is the newest token
  bool is_draft = false;  // only drafted tokens, which may be rejected, are routed to it
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// An expert in a slot was used.
  virtual void hit(const ExpertUse& use) = 0;
  /// An expert without a slot got one for this use.
  virtual void inserted(const ExpertUse& use) = 0;
  /// An expert got a slot because it may be used soon (prefetch). That use is then a hit.
  virtual void prefetched(ExpertKey key, uint64_t pass) = 0;
  /// An expert was used in another memory.
  virtual void used_elsewhere(const ExpertUse& /*use*/) {}
  /// An expert got a slot because it leaves another memory, where it was used.
  virtual void returned(ExpertKey key, uint64_t pass) { prefetched(key, pass); }
  /// An expert has left its slot: it was evicted, or dropped because reading it failed.
  virtual void removed(ExpertKey key) = 0;
  /// Chooses the expert to evict among those in slots for which `may_go` holds; nullopt: none may. Removes nothing yet.
  [[nodiscard]] virtual std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) = 0;

  // For a replay, which knows which experts may not go, and until when. Changes no decision; saves `victim` from asking
  // about each of them every time, which is slow if a layer demands many.
  /// An expert in a slot may not go until `let_go`.
  virtual void hold(ExpertKey /*key*/) {}
  virtual void let_go() {}
};

using PolicyFactory = std::function<std::unique_ptr<EvictionPolicy>()>;

struct NamedPolicy {
  std::string_view name;
  std::string_view about;  // for a table or a help text
  std::unique_ptr<EvictionPolicy> (*make)();
};

inline constexpr std::string_view kDefaultPolicy = "reuse";

/// The eviction policies, LRU first.
[[nodiscard]] std::span<const NamedPolicy> eviction_policies();
/// Errors: invalid (an unknown name; the text lists the known ones).
[[nodiscard]] Result<PolicyFactory> find_policy(std::string_view name);

}  // namespace dspack::runtime
