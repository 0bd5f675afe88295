// Measures the time of passes by stage: a clock that always counts for one stage.
// Threads: single-thread. Lifetime: a scope borrows its clock. Errors: none. It measures calls, so it is only used if
// operations run in them (on a CPU); otherwise there is no clock.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace dspack::runtime {

enum class Stage : uint8_t {
  embedding,
  attention,
  router,
  experts,  // routed experts, waiting for them included
  mlp,      // shared experts and dense MLPs
  head,
  waiting,  // for streamed layers; with_waiting_apart adds that for experts
  other,    // norms, residuals, sampling; everything outside scopes
};
inline constexpr std::array<std::string_view, 8> kStageNames = {"embedding", "attention", "router",  "experts",
                                                                "mlp",       "head",      "waiting", "other"};
inline constexpr size_t kStages = kStageNames.size();

/// By Stage.
using StageSeconds = std::array<double, kStages>;

/// Moves the time that experts were waited for, which their store counts, from the stage that computes them.
[[nodiscard]] inline StageSeconds with_waiting_apart(StageSeconds stages, double expert_waiting) {
  double& experts = stages[static_cast<size_t>(Stage::experts)];
  const double waiting = std::min(expert_waiting, experts);
  experts -= waiting;
  stages[static_cast<size_t>(Stage::waiting)] += waiting;
  return stages;
}

class StageClock {
 public:
  /// Counts time for `stage` from now on. Returns the stage before.
  Stage enter(Stage stage) {
    const auto now = Clock::now();
    seconds_[static_cast<size_t>(stage_)] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    return std::exchange(stage_, stage);
  }
  /// Since the clock was made.
  [[nodiscard]] const StageSeconds& seconds() {
    enter(stage_);
    return seconds_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  StageSeconds seconds_{};
  Stage stage_ = Stage::other;
  Clock::time_point since_ = Clock::now();
};

/// Counts its lifetime for a stage, except scopes within it. Does nothing without a clock.
class StageScope {
 public:
  StageScope(StageClock* clock, Stage stage) : clock_(clock) {
    if (clock_ != nullptr) before_ = clock_->enter(stage);
  }
  ~StageScope() {
    if (clock_ != nullptr) clock_->enter(before_);
  }
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  StageClock* clock_;
  Stage before_ = Stage::other;
};

}  // namespace dspack::runtime
