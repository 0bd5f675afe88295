// Measures the peak speeds of this machine: the limits that a run on the CPU is compared with.
// Threads: uses the number given and returns when they have ended. Errors: those of make_cpu_device; budget (no memory
// for the measurement).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/workers.h"

namespace dspack::kernels {

struct CpuPeak {
  double bytes_per_second = 0;  // reading from memory
  /// Multiplications and additions, counted separately, in the options' precision: FP32 fused multiply-adds, or for
  /// bf16, amx and int8 the instruction set's products for them if it has them.
  double operations_per_second = 0;
  double exact_operations_per_second = 0;  // FP32 fused multiply-adds
};

struct PeakEffort {
  double seconds = 1;
  /// Memory allocated and read by the measurement. Must exceed the caches: beside a cache of 480 MB, 256 MB were read
  /// at 38 GB/s, 1 GB at 33 to 36 (Sapphire Rapids, 2026-11).
  uint64_t bytes = 1ULL << 30;
};

/// Measures for about `effort.seconds` and returns the best rates.
[[nodiscard]] Result<CpuPeak> measure_cpu_peak(const CpuOptions& options, const PeakEffort& effort);

/// Sums memory as 64-bit words, an equal part on each thread: the fastest way to read it.
[[nodiscard]] uint64_t sum_words(Workers& workers, std::span<const std::byte> bytes);

/// Same on the calling thread, in the order of a product with one row of x: a few rows of a matrix at once, so that
/// page-table walks take a part of the time.
[[nodiscard]] uint64_t sum_rows(std::span<const std::byte> bytes);

}  // namespace dspack::kernels
