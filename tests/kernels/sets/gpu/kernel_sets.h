// The CUDA device on a real GPU, as what the kernel tests run on. Threads: pure functions.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "tests/gpu/real_gpu.h"
#include "tests/kernels/sets/cuda_sets.h"

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

/// Prints "SKIPPED: " with the reason where there is no GPU; a device that ought to work and does not fails the case.
inline bool runs_here(const std::string& /*set*/) {
  static const bool has_gpu = real_gpu() != nullptr;
  return has_gpu;
}
inline Result<std::unique_ptr<kernels::Device>> make_set_device(const std::string& /*set*/, unsigned /*threads*/) {
  auto gpu = real_gpu();
  if (gpu == nullptr) return Error{ErrorKind::not_found, "there is no GPU"};
  return gpu;
}
inline std::string description_of(const std::string& /*set*/) {
  return "cuda ";
}
inline size_t offset_for(const std::string& set, size_t element_bytes) {
  return set != GpuOdd::kName ? kAsLoaded : element_bytes;
}
/// Of codes of so many bytes.
inline size_t code_alignment(size_t element_bytes) {
  return element_bytes;
}

}  // namespace dspack::test

TYPE_TO_STRING_AS("gpu", dspack::test::Gpu);
TYPE_TO_STRING_AS("gpu odd", dspack::test::GpuOdd);

#define DSPACK_KERNEL_SETS dspack::test::Gpu, dspack::test::GpuOdd
