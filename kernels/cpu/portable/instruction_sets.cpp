// For processor families without tables of their own: only the scalar table.
#include <array>

#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {
namespace {

const std::array<InstructionSet, 1> kSets{{{&kScalarOps, [](CpuFeatures) { return true; }}}};

}  // namespace

CpuFeatures detect_cpu_features() {
  return {};
}

std::span<const InstructionSet> instruction_sets() {
  return kSets;
}

}  // namespace dspack::kernels
