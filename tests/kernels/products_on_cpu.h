// linear() of a CPU by each of its instruction sets, from numbers of the host to numbers of the host.
// Threads: as the device. Errors: fail the test case.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/ops_table.h"
#include "tests/kernels/weights.h"

namespace dspack::test {

inline std::vector<std::string> sets_here() {
  std::vector<std::string> names;
  for (const kernels::InstructionSet& set : kernels::instruction_sets()) {
    if (runs_here(std::string(set.ops->name))) names.emplace_back(set.ops->name);
  }
  return names;
}

/// `set`: empty for the widest. Rows of the result lie apart, in memory that was poisoned.
inline std::vector<float> multiply_on(const std::string& set, kernels::Precision precision, const RandomWeight& weight,
                                      const std::vector<float>& x, uint32_t rows, unsigned threads = 2) {
  auto device = kernels::make_cpu_device({.threads = threads, .instruction_set = set, .precision = precision});
  REQUIRE(device.has_value());
  Lab lab(set, std::move(*device));
  const uint32_t out = weight.shape.out;
  const uint32_t in = weight.shape.in;
  const uint32_t stride = out + 3;
  const kernels::Slice y = lab.poisoned(size_t{rows} * stride);
  lab.queue().linear(weight.put(lab), {lab.put(x), rows, in, in}, {y, rows, out, stride});
  return dense(lab.get(y, size_t{rows} * stride), rows, out, stride);
}

}  // namespace dspack::test
