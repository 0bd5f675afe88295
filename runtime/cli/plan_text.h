// What dsrun plan prints, for people and for machines.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include "format/json.h"

#include "runtime/access/checkpoint_access.h"
#include "runtime/budget/speed_estimate.h"
#include "runtime/budget/supposed_rates.h"
#include "runtime/cli/verbs.h"
#include "runtime/generate/load_plan.h"

namespace dspack::runtime {

/// What is found out: where everything would lie, and how fast the run should be, from what is measured here.
struct Outlook {
  ModelConfig config;
  LoadPlan plan;
  SpeedShape shape;
  std::string device;
  kernels::Precision precision = kernels::Precision::exact;
  std::optional<AbsentWeights> absent;  // of a part of a model
  std::string absent_from;

  bool sizes_are_computed = false;  // from config.json alone

  // Where compute, link and reads come from.
  RateOrigin compute_origin = RateOrigin::measured;
  RateOrigin link_origin = RateOrigin::measured;
  RateOrigin read_origin = RateOrigin::measured;
  RateOrigin host_origin = RateOrigin::measured;  // of what the CPU computes of a token
  std::optional<double> core_share;               // of what the CPU wanted while it was measured (core_share.h)
  // Measured or supposed, of one token; of the link and the CPU's experts only where a GPU computes.
  TierTimes times;
  // Expected: the first token, if anything has to be read for it, then by what is assumed.
  std::vector<DecodeEstimate> decodes;
  PrefillEstimate prefill;
  double loading_seconds = 0;  // of GPUs that hold all

  [[nodiscard]] ExpertPlacement placement() const {
    if (!plan.memory.vram) return ExpertPlacement::streamed;
    return plan.memory.vram->holds_all() ? ExpertPlacement::resident : ExpertPlacement::tiered;
  }
  /// Whether one GPU, or several together, have all experts before the first token.
  [[nodiscard]] bool are_all_on_gpus() const {
    return plan.memory.fills_gpus || placement() == ExpertPlacement::resident;
  }
};

[[nodiscard]] std::string to_text(const Outlook& outlook, const PlanOptions& options);
[[nodiscard]] format::Json to_json(const Outlook& outlook, const PlanOptions& options);

}  // namespace dspack::runtime
