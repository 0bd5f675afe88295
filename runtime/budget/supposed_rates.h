// Rates that a plan uses instead of measuring them: given by the user, or assumed if nothing can be measured. Converts
// them to the times that speed_estimate.h takes.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include <optional>

#include "runtime/budget/speed_estimate.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

/// Bytes per second. Unset: measured, or assumed if there is nothing to measure.
struct SupposedRates {
  std::optional<uint64_t> disk;     // reading experts
  std::optional<uint64_t> network;  // fetching experts, in place of disk
  std::optional<uint64_t> link;     // from host memory to the GPU's
  std::optional<uint64_t> gpu;      // reading the GPU's own memory
  std::optional<uint64_t> memory;   // reading host memory, as the CPU reads weights
};

inline constexpr uint64_t kAssumedDiskRate = 3'000'000'000;   // an NVMe disk of PCIe 3
inline constexpr uint64_t kAssumedLinkRate = 25'000'000'000;  // PCIe 4, 16 lanes
inline constexpr uint64_t kAssumedGpuRate = 1'000'000'000'000;

/// The origin of a number in a plan.
enum class RateOrigin { measured, given, assumed };
/// "measured", "given", "assumed".
[[nodiscard]] std::string_view to_string(RateOrigin origin);

/// `count` experts at once take as long as one after the other.
[[nodiscard]] ReadTimes reads_at(uint64_t rate, uint64_t expert_bytes, uint32_t count, Medium medium);
[[nodiscard]] LinkTimes link_at(uint64_t rate, uint64_t expert_bytes, uint32_t count);

/// The least time of a pass of `rows` on a device whose memory has this rate: each weight is read once. Additional time
/// for arithmetic is not known.
[[nodiscard]] ComputeTimes compute_at(uint64_t rate, const MemoryNeeds& needs, const ModelConfig& config,
                                      const SpeedShape& shape, uint32_t rows);

}  // namespace dspack::runtime
