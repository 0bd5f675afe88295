// dsrun plan DIR: whether a model fits, where it would lie, and how fast it should run.
// Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/budget/speed_estimate.h"
#include "runtime/cli/generation_options.h"
#include "runtime/generate/load_plan.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/storage/completed_place.h"

namespace dspack::runtime {

struct PlanOptions {
  std::string folder;
  LoadOptions load;
  DraftOptions drafts;  // `load` has what comes of them
  uint32_t prompt_tokens = 128;
  std::optional<double> hit_rate;  // of decode, in percent; unset: assumed
  bool json = false;

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete();
};

/// What is found out: where everything would lie, and how fast the run should be, from what is measured here.
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

}  // namespace dspack::runtime
