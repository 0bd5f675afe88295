// The instruction sets of x86-64, and which of them this processor and its operating system offer.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/// Of leaf 7, which says what came after AVX2.
bool has_vbmi() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kVbmi = 1U << 1;  // leaf 7.0, ECX
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kVbmi) != 0;
}

/// Tiles, their BF16, and AVX-512's. Linux lends the tiles' registers, 8 KiB a thread, to processes that ask
/// (arch_prctl(2), ARCH_REQ_XCOMP_PERM).
bool has_tiles() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kAmxBf16 = 1U << 22 | 1U << 24;  // leaf 7.0, EDX: AMX-BF16, AMX-TILE
  constexpr unsigned kAvx512Bf16 = 1U << 5;           // leaf 7.1, EAX
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxBf16) != kAmxBf16) return false;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0 || (eax & kAvx512Bf16) == 0) return false;
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const CpuOps kVbmiOps = [] {
  CpuOps ops = kAvx512Ops;
  ops.name = "vbmi";
  ops.linear[static_cast<size_t>(Coding::f8_e4m3)] = kVbmiE4m3.linear;
  ops.panels.linear[static_cast<size_t>(Coding::f8_e4m3)] = kVbmiE4m3.panels;
  ops.columns[static_cast<size_t>(Coding::f8_e4m3)] = kVbmiE4m3.columns;
  return ops;
}();
const CpuOps kAmxOps = [] {
  CpuOps ops = kVbmiOps;
  ops.name = "amx";
  ops.rounded = kAmxRounded;
  return ops;
}();

const std::array<InstructionSet, 5> kSets{{
    {&kAmxOps, [](CpuFeatures have) { return have.amx; }},
    {&kVbmiOps, [](CpuFeatures have) { return have.vbmi; }},
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
  have.vbmi = have.avx512 && has_vbmi();
  have.amx = have.vbmi && has_tiles();
  return have;
}

std::span<const InstructionSet> instruction_sets() {
  return kSets;
}

}  // namespace dspack::kernels
