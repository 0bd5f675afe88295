// The output of dsrun plan, as text for people and as JSON for programs.
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

/// The result of planning: where everything would be placed, and the expected speed from measurements on this machine.
struct Outlook {
  ModelConfig config;
  LoadPlan plan;
  SpeedShape shape;
  std::string device;
  kernels::Precision precision = kernels::Precision::exact;
  std::optional<AbsentWeights> absent;  // for a part of a model
  std::string absent_from;

  bool sizes_are_computed = false;  // only from config.json

  // Origin of the rates of compute, link and reads.
  RateOrigin compute_origin = RateOrigin::measured;
  RateOrigin link_origin = RateOrigin::measured;
  RateOrigin read_origin = RateOrigin::measured;
  RateOrigin host_origin = RateOrigin::measured;  // for the CPU computing a token
  std::optional<double> core_share;               // share of wanted CPU time that the measurement got (core_share.h)
  std::optional<int64_t> measured_ago;            // seconds since the oldest remembered trial; absent: all are of now
  // Measured or supposed times for one token; link and CPU experts only if a GPU computes.
  TierTimes times;
  // Expected decode speeds: the first token, with empty slots, then one for each assumption; only one if GPUs hold all.
  std::vector<DecodeEstimate> decodes;
  PrefillEstimate prefill;
  double loading_seconds = 0;  // for GPUs that hold all experts

  [[nodiscard]] ExpertPlacement placement() const {
    if (!plan.memory.vram) return ExpertPlacement::streamed;
    return plan.memory.vram->holds_all() ? ExpertPlacement::resident : ExpertPlacement::tiered;
  }
  /// Whether one GPU, or several together, hold all experts before the first token.
  [[nodiscard]] bool are_all_on_gpus() const {
    return plan.memory.fills_gpus || placement() == ExpertPlacement::resident;
  }
};

[[nodiscard]] std::string to_text(const Outlook& outlook, const PlanOptions& options);
[[nodiscard]] format::Json to_json(const Outlook& outlook, const PlanOptions& options);

}  // namespace dspack::runtime
