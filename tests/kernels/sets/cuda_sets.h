// What every set of tests knows of the CUDA kernels, whatever GPU they run on. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "format/base/size.h"

namespace dspack::test {

/// What a set must equal bit for bit: itself. Rows that begin at odd places are summed in another order.
inline std::string plainest_of(const std::string& set) {
  return set;
}

/// For tests that compare bits: threads of a device at most, and rows of a call.
inline constexpr unsigned kMaxThreads = 1;
inline constexpr uint32_t kRowCounts[] = {1, 3, 8, 13};

/// Where loading puts weights: bytes that they are aligned to.
inline constexpr size_t kAsLoaded = 256;

/// Roundings on the way of one term into its dot product (kernels/cuda/device/dot.cuh): its chunk, the chunks of its
/// lane (element by element where they are not aligned), a product and a scale, five sums of lanes, four of warps.
inline double dot_steps(unsigned element_bits, uint64_t /*block*/, uint64_t in) {
  const uint64_t per_chunk = 128 / element_bits;
  return static_cast<double>(per_chunk * ceil_div(ceil_div(in, per_chunk), 32) + 11);
}

}  // namespace dspack::test
