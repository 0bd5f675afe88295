// Demands of a pass as eviction policies hear of them, and those of drafted tokens again once the drafts have stood.
// Threads: single-thread. Lifetime: a plain value. Errors: none.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "runtime/experts/expert_store.h"

namespace dspack::runtime {

class PassUses {
 public:
  void begin_pass(const ExpertPass& pass) {
    pass_ = pass;
    ++number_;
    of_drafts_.clear();
  }
  [[nodiscard]] const ExpertPass& pass() const { return pass_; }
  /// Passes so far, the present one included.
  [[nodiscard]] uint64_t number() const { return number_; }

  [[nodiscard]] ExpertUse use_of(LayerId layer, const ExpertDemand& demand) const {
    return {.key = {.layer = layer, .expert = demand.expert},
            .pass = number_,
            .phase = pass_.phase,
            .rows = demand.rows,
            .last_row = pass_.rows - std::min(pass_.rows, demand.last_row + 1),
            .is_draft = demand.first_row + pass_.draft_rows >= pass_.rows && pass_.draft_rows > 0};
  }

  /// Keeps those of drafted tokens in mind.
  void remember_drafts(LayerId layer, std::span<const ExpertDemand> demands) {
    for (const ExpertDemand& demand : demands) {
      ExpertUse use = use_of(layer, demand);
      if (!use.is_draft) continue;
      use.is_draft = false;  // as it counts once the draft has stood
      of_drafts_.emplace_back(demand.first_row, use);
    }
  }

  /// The first `rows` drafted rows have stood: what they used. Once a pass.
  [[nodiscard]] std::vector<ExpertUse> accept_drafts(uint32_t rows) {
    const uint32_t first_draft = pass_.rows - std::min(pass_.rows, pass_.draft_rows);
    std::vector<ExpertUse> stood;
    for (const auto& [row, use] : std::exchange(of_drafts_, {})) {
      if (row - first_draft < rows) stood.push_back(use);
    }
    return stood;
  }

 private:
  ExpertPass pass_;
  uint64_t number_ = 0;
  std::vector<std::pair<uint32_t, ExpertUse>> of_drafts_;  // of this pass, with their first row
};

}  // namespace dspack::runtime
