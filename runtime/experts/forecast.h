// What the next layer is expected to want, until it says what it does want.
// Threads: single-thread (the store's lock). Errors: none.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/experts/expert_store.h"
#include "runtime/experts/store_stats.h"

namespace dspack::runtime {

class Forecast {
 public:
  /// `experts`: most likely first. A former expectation ends.
  void expect(LayerId layer, std::span<const ExpertId> experts);
  /// A layer says what it wants: the expectation ends, and is compared if it was of this layer.
  void resolve(LayerId layer, std::span<const ExpertDemand> demands, PhaseStats& counts);
  void clear();

  /// Each expected expert once, in order; nullopt: that was all.
  [[nodiscard]] std::optional<ExpertKey> next();
  /// Whether the layer at work or the next one may need the expert.
  [[nodiscard]] bool is_near(ExpertKey key) const;

 private:
  std::vector<ExpertKey> expected_;
  size_t next_ = 0;
  std::set<ExpertKey> wanted_;  // by the layer at work
};

}  // namespace dspack::runtime
