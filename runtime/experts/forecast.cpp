#include "runtime/experts/forecast.h"

#include <algorithm>

namespace dspack::runtime {

void Forecast::expect(LayerId layer, std::span<const ExpertId> experts) {
  clear();
  for (const ExpertId expert : experts)
    expected_.push_back({.layer = layer, .expert = expert});
}

void Forecast::resolve(LayerId layer, std::span<const ExpertDemand> demands, PhaseStats& counts) {
  wanted_.clear();
  for (const ExpertDemand& demand : demands)
    wanted_.insert({.layer = layer, .expert = demand.expert});
  if (!expected_.empty() && expected_.front().layer == layer) {
    counts.foreseeable += demands.size();
    counts.expected += expected_.size();
    counts.foreseen +=
        static_cast<uint64_t>(std::ranges::count_if(expected_, [&](ExpertKey key) { return wanted_.contains(key); }));
  }
  clear();
}

void Forecast::clear() {
  expected_.clear();
  next_ = 0;
}

std::optional<ExpertKey> Forecast::next() {
  if (next_ == expected_.size()) return std::nullopt;
  return expected_[next_++];
}

bool Forecast::is_near(ExpertKey key) const {
  return wanted_.contains(key) || std::ranges::find(expected_, key) != expected_.end();
}

}  // namespace dspack::runtime
