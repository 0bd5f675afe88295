// Whether a journal's records belong to a plan. A journal is a file that may lie: its records have the right check and
// say what no run has done. Its numbers become indices, offsets and sizes, so each is compared with the plan first.
// Threads: a pure function. Errors: none.
#pragma once

#include "reshard/journal.h"
#include "reshard/part.h"

namespace dspack::reshard {

[[nodiscard]] bool fits_plan(const JournalState& state, const RunScope& scope, const Plan& plan);

}  // namespace dspack::reshard
