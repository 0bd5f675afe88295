// Collects the single uses that a policy receives into visits: the experts that one layer used in one pass. An accepted
// draft is reported after its pass, so it is a visit of its own, as the token would have been. Threads: single-thread.
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
  uint32_t tokens = 1;  // of a prefill: 1 + the oldest row that any layer has told of; all of them after one layer
  std::vector<ExpertUse> uses;  // without drafts
};

class LayerVisits {
 public:
  /// The visit that has ended because this use is of another one.
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
  /// The layer at work; nullopt: none has begun.
  [[nodiscard]] std::optional<LayerId> present() const {
    return present_ ? std::optional(present_->layer) : std::nullopt;
  }

 private:
  std::optional<LayerVisit> present_;
};

}  // namespace dspack::runtime
