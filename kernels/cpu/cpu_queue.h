// The queue of the CPU device: checks an operation, turns its slices into pointers, and splits it over the workers.
// Threads: one thread at a time. Lifetime: borrows the table (static) and the workers (owned by the device).
// Errors: shapes that do not fit, and buffers of another device, are programming errors.
#pragma once

#include <memory>

#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/workers.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels {

/// `precision`: exact or bf16.
[[nodiscard]] std::unique_ptr<Queue> make_cpu_queue(const CpuOps& ops, Workers& workers, Precision precision);

}  // namespace dspack::kernels
