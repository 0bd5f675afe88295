// The CPU's instruction sets, as what the kernel tests run on. Threads: pure functions.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/ops_table.h"
#include "named_sets.h"  // of the processor family that the build picks

namespace dspack::test {

/// What all sets must equal bit for bit; and where there is no choice of one.
inline constexpr const char* kPlainestSet = "scalar";

inline const char* plainest_of(const std::string& /*set*/) {
  return kPlainestSet;
}

/// For tests that compare bits: threads of a device at most, and rows of a call.
inline constexpr unsigned kMaxThreads = 3;
inline constexpr uint32_t kRowCounts[] = {1, 2, 3, 4, 7, 12, 13, 39};

inline bool runs_here(const std::string& set) {
  return kernels::select_cpu_ops(kernels::detect_cpu_features(), set).has_value();
}
inline Result<std::unique_ptr<kernels::Device>> make_set_device(const std::string& set, unsigned threads) {
  return kernels::make_cpu_device({.threads = threads, .instruction_set = set});
}
inline std::string description_of(const std::string& set) {
  return set.empty() ? "cpu " : "cpu " + set + ",";
}
/// Bytes from the start of a buffer to what a test puts there: aligned to elements and no more.
inline size_t offset_for(const std::string& /*set*/, size_t element_bytes) {
  return element_bytes;
}
/// Of codes of so many bytes: a processor reads those of 16 bits at any byte.
inline size_t code_alignment(size_t element_bytes) {
  return element_bytes == 2 ? 1 : element_bytes;
}
/// Roundings on the way of one term into its dot product: the fma chain of its lane, one fma per block, four sums of
/// lanes.
inline double dot_steps(unsigned /*element_bits*/, uint64_t block, uint64_t in) {
  return static_cast<double>(ceil_div(block, 16) + ceil_div(in, block) + 4);
}

}  // namespace dspack::test
