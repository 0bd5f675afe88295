// What this machine could do at most, measured: the limits that a run on the CPU is compared with.
// Threads: uses as many as it is told and returns when they have ended. Errors: those of make_cpu_device; budget (no
// memory for the measurement).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/workers.h"

namespace dspack::kernels {

struct CpuPeak {
  double bytes_per_second = 0;  // memory that is read, not written
  /// Multiplications and additions, each counted, of the options' precision: FP32 fused multiply-adds, or the tiles'
  /// products of BF16 where the instruction set has them.
  double operations_per_second = 0;
};

struct PeakEffort {
  double seconds = 1;
  /// Memory that is taken for the time of the measurement, and read. It must be more than the caches hold: beside a
  /// cache of 480 MB, 256 MB were read at 38 GB/s, 1 GB at 33 to 36 (Sapphire Rapids, 2026-11).
  uint64_t bytes = 1ULL << 30;
};

/// The best of what was seen in about `effort.seconds`.
[[nodiscard]] Result<CpuPeak> measure_cpu_peak(const CpuOptions& options, const PeakEffort& effort);

/// Sums memory as 64-bit words, an equal part on each thread: reading at its fastest.
[[nodiscard]] uint64_t sum_words(Workers& workers, std::span<const std::byte> bytes);

/// The same on the calling thread in the order of a product with one row of x: a few rows of a matrix at once, so that
/// it takes part of its time to find their pages.
[[nodiscard]] uint64_t sum_rows(std::span<const std::byte> bytes);

}  // namespace dspack::kernels
