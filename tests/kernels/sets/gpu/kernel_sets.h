// The CUDA device of this machine's GPU, as what the kernel tests run on. Where there is none, every case says so.
// Threads: as real_gpu.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

#include "format/base/checked.h"
#include "tests/gpu/real_gpu.h"

namespace dspack::test {

// Weights where loading puts them, and weights that are aligned to their elements and no more, which other kernels
// multiply.
struct Gpu {
  static constexpr const char* kName = "gpu";
};
struct GpuOdd {
  static constexpr const char* kName = "gpu odd";
};

inline constexpr const char* kPlainestSet = "gpu";

/// What a set must equal bit for bit: itself. Rows that begin at odd places are summed in another order.
inline std::string plainest_of(const std::string& set) {
  return set;
}

/// For tests that compare bits: threads of a device at most, and rows of a call.
inline constexpr unsigned kMostThreads = 1;
inline constexpr uint32_t kRowCounts[] = {1, 3, 8, 13};

/// Prints "SKIPPED: " with the reason where there is no GPU; a device that ought to work and does not fails the case.
inline bool runs_here(const std::string& /*set*/) {
  static const bool has_gpu = real_gpu() != nullptr;
  return has_gpu;
}
inline Result<std::unique_ptr<kernels::Device>> make_set_device(const std::string& /*set*/, unsigned /*threads*/) {
  auto device = real_gpu();
  if (device == nullptr) return Error{ErrorKind::not_found, "no GPU"};
  return device;
}
inline std::string description_of(const std::string& /*set*/) {
  return "cuda ";
}
inline size_t offset_for(const std::string& set, size_t element_bytes) {
  constexpr size_t kAsLoaded = 256;
  return set != GpuOdd::kName ? kAsLoaded : element_bytes;
}
/// Roundings on the way of one term into its dot product (kernels/cuda/device/dot.cuh): its chunk, the chunks of its
/// lane (element by element where they are not aligned), a product and a scale, five sums of lanes, four of warps.
inline double dot_steps(unsigned element_bits, uint64_t /*block*/, uint64_t in) {
  const uint64_t per_chunk = 128 / element_bits;
  return static_cast<double>(per_chunk * ceil_div(ceil_div(in, per_chunk), 32) + 11);
}

}  // namespace dspack::test

TYPE_TO_STRING_AS("gpu", dspack::test::Gpu);
TYPE_TO_STRING_AS("gpu odd", dspack::test::GpuOdd);

#define DSPACK_KERNEL_SETS dspack::test::Gpu, dspack::test::GpuOdd
