// The measured part of dsrun plan: trials on this machine, or what earlier plans measured, and the speeds that follow.
// Threads: single-thread; trials use their own. Errors: those of the trials.
#pragma once

#include <stop_token>

#include "runtime/budget/remembered_times.h"
#include "runtime/cli/plan_text.h"
#include "runtime/generate/device_choice.h"

namespace dspack::runtime {

/// Fills in `shape` and everything that is measured or expected. Puts what it measures into `remembered`.
[[nodiscard]] Result<void> measure_outlook(ChosenDevice& chosen, CheckpointAccess& access, const PlanOptions& options,
                                           RememberedTimes& remembered, Outlook& outlook, const std::stop_token& stop);

}  // namespace dspack::runtime
