// The instruction sets of AArch64. NEON is part of the base architecture; its dot products of bytes are detected.
#include <sys/auxv.h>

#include <array>

#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {
namespace {

/// NEON, with its dot products of bytes for products in precision int8.
const CpuOps kNeonDotOps = [] {
  CpuOps ops = kNeonOps;
  ops.name = "neondot";
  ops.int8 = &kNeonDotInt8;
  return ops;
}();

const std::array<InstructionSet, 3> kSets{{
    {&kNeonDotOps, [](CpuFeatures have) { return have.neondot; }},
    {&kNeonOps, [](CpuFeatures) { return true; }},
    {&kScalarOps, [](CpuFeatures) { return true; }},
}};

}  // namespace

CpuFeatures detect_cpu_features() {
  constexpr unsigned long kDotProducts = 1UL << 20U;  // HWCAP_ASIMDDP (Linux, Documentation/arch/arm64/elf_hwcaps.rst)
  return {.neondot = (getauxval(AT_HWCAP) & kDotProducts) != 0};
}

std::span<const InstructionSet> instruction_sets() {
  return kSets;
}

}  // namespace dspack::kernels
