// Decides which expert leaves a slot when another one needs it. Caches and the replay of recorded routes use the same
// interface, so the results of a replay hold for a run.
// Threads: single-thread. Lifetime: self-contained. Errors: none but of find_policy.
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

/// One number for a key, for tables.
[[nodiscard]] constexpr uint64_t packed(ExpertKey key) {
  return uint64_t{key.layer.value} << 32U | key.expert.value;
}

/// What a pass is for. A prefill reads many tokens at once, each expert once; a decode pass is one token, or a few
/// with drafts.
enum class Phase { prefill, decode };
inline constexpr size_t kPhases = 2;

/// One use of an expert. Passes of the model are counted from 0; within a pass, layers come in ascending order but for
/// a layer map's repetitions.
struct ExpertUse {
  ExpertKey key;
  uint64_t pass = 0;
  Phase phase = Phase::decode;
  uint32_t rows = 1;      // tokens of the pass that go to it
  uint32_t last_row = 0;  // the last of them, counted from the pass's end: 0 is the newest token
  bool is_draft = false;  // only drafted tokens go to it, which may be rejected
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// An expert that is in a slot is used.
  virtual void hit(const ExpertUse& use) = 0;
  /// An expert has got a slot, for this use. Never one that is in a slot.
  virtual void inserted(const ExpertUse& use) = 0;
  /// An expert has got a slot because it may be used soon (prefetch). Used then, it is a hit.
  virtual void prefetched(ExpertKey key, uint64_t pass) = 0;
  /// An expert that is in no slot here is used in another memory.
  virtual void used_elsewhere(const ExpertUse& /*use*/) {}
  /// An expert has got a slot because it leaves another memory, where it was used.
  virtual void returned(ExpertKey key, uint64_t pass) { prefetched(key, pass); }
  /// An expert has left its slot: a victim, or dropped because reading it failed.
  virtual void removed(ExpertKey key) = 0;
  /// The expert to give up, among those in slots for which `may_go` holds; nullopt: none may. Nothing is removed yet.
  [[nodiscard]] virtual std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) = 0;

  // For a replay, which knows which experts may not go, and until when. It changes no decision; it spares `victim`
  // asking for each of them every time, which takes long where a layer asks for many.
  /// The expert, which is in a slot, may not go until `let_go`.
  virtual void hold(ExpertKey /*key*/) {}
  virtual void let_go() {}
};

/// Makes a policy for a number of slots; equal seeds give equal decisions.
using PolicyFactory = std::function<std::unique_ptr<EvictionPolicy>(uint64_t slots, uint64_t seed)>;

struct NamedPolicy {
  std::string_view name;
  std::string_view about;  // for a table or a help text
  std::unique_ptr<EvictionPolicy> (*make)(uint64_t slots, uint64_t seed);
};

inline constexpr std::string_view kDefaultPolicy = "reuse";

/// The eviction policies of a run, LRU first. Others, which measured worse, can be replayed (replay_policies.h).
[[nodiscard]] std::span<const NamedPolicy> eviction_policies();
/// Errors: invalid (an unknown name; the text lists the known ones).
[[nodiscard]] Result<PolicyFactory> find_policy(std::string_view name);

}  // namespace dspack::runtime
