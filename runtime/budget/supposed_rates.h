// Rates that a plan takes instead of measuring them: those that a user gives, or where nothing can be measured, those
// that are assumed. From them the times that speed_estimate.h wants.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include <optional>

#include "runtime/budget/speed_estimate.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Bytes a second. Unset: measured, or where there is nothing to measure, assumed.
struct SupposedRates {
  std::optional<uint64_t> disk;     // reading experts
  std::optional<uint64_t> network;  // in its place: fetching them
  std::optional<uint64_t> link;     // from the host's memory to the GPU's
  std::optional<uint64_t> gpu;      // of the GPU's own memory
  std::optional<uint64_t> memory;   // of the host's, as the CPU reads weights
};

inline constexpr uint64_t kAssumedDiskRate = 3'000'000'000;   // an NVMe disk of PCIe 3
inline constexpr uint64_t kAssumedLinkRate = 25'000'000'000;  // PCIe 4, 16 lanes
inline constexpr uint64_t kAssumedGpuRate = 1'000'000'000'000;

/// Where a number of a plan comes from.
enum class RateOrigin { measured, given, assumed };
/// "measured", "given", "assumed".
[[nodiscard]] std::string_view to_string(RateOrigin origin);

/// `count` experts at once take as long as one after the other.
[[nodiscard]] ReadTimes reads_at(uint64_t rate, uint64_t expert_bytes, uint32_t count, Medium medium);
[[nodiscard]] LinkTimes link_at(uint64_t rate, uint64_t expert_bytes, uint32_t count);

/// The least that a pass of `rows` takes on a device whose memory has this rate: each weight is read once. What
/// arithmetic takes beyond that is not known.
[[nodiscard]] ComputeTimes compute_at(uint64_t rate, const MemoryNeeds& needs, const ModelConfig& config,
                                      const SpeedShape& shape, uint32_t rows);

}  // namespace dspack::runtime
