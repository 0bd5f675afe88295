// The instruction sets of x86-64, and which of them this processor and its operating system offer.
#include <cpuid.h>

#include <array>

#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {
namespace {

// Compilers differ in whether __builtin_cpu_supports knows this one. Its registers are those of AVX, asked for below.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kF16cBit = 1U << 29;  // CPUID leaf 1, ECX
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16cBit) != 0;
}

const std::array<InstructionSet, 3> kSets{{
    {&kAvx512Ops, [](CpuFeatures have) { return have.avx512; }},
    {&kAvx2Ops, [](CpuFeatures have) { return have.avx2; }},
    {&kScalarOps, [](CpuFeatures) { return true; }},
}};

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures have;
  have.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
  have.avx512 = have.avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  return have;
}

std::span<const InstructionSet> instruction_sets() {
  return kSets;
}

}  // namespace dspack::kernels
