// The instruction sets of AArch64. NEON is part of the base architecture, so there is nothing to detect.
#include <array>

#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {
namespace {

const std::array<InstructionSet, 2> kSets{{
    {&kNeonOps, [](CpuFeatures) { return true; }},
    {&kScalarOps, [](CpuFeatures) { return true; }},
}};

}  // namespace

CpuFeatures detect_cpu_features() {
  return {};
}

std::span<const InstructionSet> instruction_sets() {
  return kSets;
}

}  // namespace dspack::kernels
