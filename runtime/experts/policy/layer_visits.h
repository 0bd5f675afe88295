// Groups the single uses that a policy receives into visits: the experts that one layer used in one pass. An accepted
// draft is reported after its pass, so it makes a separate visit, as the token would have. Threads: single-thread.
// Errors: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/experts/eviction_policy.h"

namespace dspack::runtime {

struct LayerVisit {
  LayerId layer;
  uint64_t pass = 0;
  Phase phase = Phase::decode;
  /// In a prefill: 1 + the oldest row that any layer has reported so far, so all tokens after one layer.
  uint32_t tokens = 1;
  std::vector<ExpertUse> uses;  // without drafts
};

class LayerVisits {
 public:
  /// Adds a use. Returns the visit that this use ends by belonging to another one.
  [[nodiscard]] std::optional<LayerVisit> add(const ExpertUse& use) {
    std::optional<LayerVisit> ended;
    if (!present_ || present_->layer != use.key.layer || present_->pass != use.pass) {
      const uint32_t tokens = present_ && present_->pass == use.pass ? present_->tokens : 1;
      ended = std::move(present_);
      present_ = LayerVisit{.layer = use.key.layer, .pass = use.pass, .phase = use.phase, .tokens = tokens, .uses = {}};
    }
    if (use.phase == Phase::prefill) present_->tokens = std::max(present_->tokens, use.last_row + 1);
    if (!use.is_draft) present_->uses.push_back(use);
    return ended;
  }
  /// The current layer; nullopt: none has begun.
  [[nodiscard]] std::optional<LayerId> present() const {
    return present_ ? std::optional(present_->layer) : std::nullopt;
  }

 private:
  std::optional<LayerVisit> present_;
};

}  // namespace dspack::runtime
