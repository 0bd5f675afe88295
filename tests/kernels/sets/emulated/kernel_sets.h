// The CUDA device on the emulated GPU, as what the kernel tests run on. Threads: pure functions but for the emulator's
// settings.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <string>

#include "kernels/cuda/host/cuda_device.h"
#include "tests/kernels/sets/cuda_sets.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test {

// Weights where loading puts them, and weights that are aligned to their elements and no more, which other kernels
// multiply.
struct Emulated {
  static constexpr const char* kName = "emulated";
};
struct EmulatedOdd {
  static constexpr const char* kName = "emulated odd";
};

inline constexpr const char* kPlainestSet = "emulated";

inline bool runs_here(const std::string& /*set*/) {
  return true;
}
/// "emulated bf16", "emulated fp8", "emulated split": for tests of what precisions have in common, without cuBLASLt.
inline kernels::Precision precision_of(const std::string& set) {
  for (const kernels::Precision precision :
       {kernels::Precision::split, kernels::Precision::bf16, kernels::Precision::fp8}) {
    if (set.ends_with(to_string(precision))) return precision;
  }
  return kernels::Precision::exact;
}
/// Every device sees another order of threads and blocks.
inline Result<std::unique_ptr<kernels::Device>> make_set_device(const std::string& set, unsigned /*threads*/) {
  gpu::configure_emulator({.seed = std::random_device{}()});
  return kernels::make_cuda_device({.precision = precision_of(set), .cublaslt = kernels::kNoCublasLt});
}
inline std::string description_of(const std::string& set) {
  return "cuda emulated GPU, sm_90, " + std::string(to_string(precision_of(set)));
}
inline size_t offset_for(const std::string& set, size_t element_bytes) {
  return set != EmulatedOdd::kName ? kAsLoaded : element_bytes;
}
/// Of codes of so many bytes.
inline size_t code_alignment(size_t element_bytes) {
  return element_bytes;
}

}  // namespace dspack::test

TYPE_TO_STRING_AS("emulated", dspack::test::Emulated);
TYPE_TO_STRING_AS("emulated odd", dspack::test::EmulatedOdd);

#define DSPACK_KERNEL_SETS dspack::test::Emulated, dspack::test::EmulatedOdd
