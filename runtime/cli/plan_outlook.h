// What dsrun plan finds out: where everything would lie, and how fast the run should be, from what is measured here.
// Threads: single-thread. Lifetime: plain values. Errors of measuring: those of the trials.
#pragma once

#include <string>

#include "runtime/budget/speed_estimate.h"
#include "runtime/cli/plan_options.h"
#include "runtime/generate/load_plan.h"
#include "runtime/storage/completed_place.h"

namespace dspack::runtime {

struct Outlook {
  ModelConfig config;
  LoadPlan plan;
  SpeedShape shape;
  std::string device;
  kernels::Precision precision = kernels::Precision::exact;
  std::optional<AbsentWeights> absent;  // of a part of a model
  std::string absent_from;

  // Measured, of one token; of the link and the CPU's experts only where a GPU computes.
  TierTimes times;
  // Expected: the first token, if anything has to be read for it, then by what is assumed.
  std::vector<DecodeEstimate> decodes;
  PrefillEstimate prefill;
  double loading_seconds = 0;  // of a GPU that holds all

  [[nodiscard]] ExpertPlacement placement() const {
    if (!plan.memory.vram) return ExpertPlacement::streamed;
    return plan.memory.vram->holds_all() ? ExpertPlacement::resident : ExpertPlacement::tiered;
  }
};

/// Fills in shape and everything that is measured and expected.
[[nodiscard]] Result<void> measure(ChosenDevice& chosen, CheckpointFiles& files, const PlanOptions& options,
                                   Outlook& outlook, const std::stop_token& stop);

}  // namespace dspack::runtime
