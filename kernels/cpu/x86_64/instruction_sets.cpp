// The instruction sets of x86-64, and detection of those that this processor and its operating system support.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {
namespace {

// Compilers differ in whether __builtin_cpu_supports knows F16C. Its registers are those of AVX2, which is checked
// below.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kF16cBit = 1U << 29;  // CPUID leaf 1, ECX
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16cBit) != 0;
}

// Not every compiler's __builtin_cpu_supports knows AVX-VNNI. Its registers are those of AVX2, which is checked below.
bool has_avxvnni() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kAvxVnni = 1U << 4U;  // leaf 7.1, EAX
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}

/// Whether there are AMX tiles with BF16. Linux grants the tile state, 8 KiB per thread, on request (arch_prctl(2),
/// ARCH_REQ_XCOMP_PERM).
bool has_tiles() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kAmxBf16 = 1U << 22 | 1U << 24;  // leaf 7.0, EDX: AMX-BF16, AMX-TILE
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxBf16) != kAmxBf16) return false;
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// AVX2, with AVX-VNNI for products in precision int8.
const CpuOps kAvxVnniOps = [] {
  CpuOps ops = kAvx2Ops;
  ops.name = "avxvnni";
  ops.int8 = &kAvxVnniInt8;
  return ops;
}();
/// AVX-512, with VNNI for products in precision int8.
const CpuOps kAvx512VnniOps = [] {
  CpuOps ops = kAvx512Ops;
  ops.name = "avx512vnni";
  ops.int8 = &kAvx512VnniInt8;
  return ops;
}();
/// AVX512-VNNI, with VBMI for products of E4M3.
const CpuOps kVbmiOps = [] {
  CpuOps ops = kAvx512VnniOps;
  ops.name = "vbmi";
  ops.linear[static_cast<size_t>(Coding::f8_e4m3)] = kVbmiE4m3.linear;
  ops.panels.linear[static_cast<size_t>(Coding::f8_e4m3)] = kVbmiE4m3.panels;
  ops.columns[static_cast<size_t>(Coding::f8_e4m3)] = kVbmiE4m3.columns;
  return ops;
}();
/// VBMI, with AVX512-BF16 for products in precision bf16.
const CpuOps kAvx512Bf16Ops = [] {
  CpuOps ops = kVbmiOps;
  ops.name = "avx512bf16";
  ops.bf16 = &kAvx512Bf16Rounded;
  return ops;
}();
/// VBMI, with AMX tiles for products in precision amx. Processors that have them execute VDPBF16PS at half the rate of
/// fused multiply-adds, so bf16 is faster by those (Sapphire Rapids kind, one thread beside other work, 2026-11: one
/// row 14 against 11 GB/s, 64 rows 105 against 69 GFLOP/s).
const CpuOps kAmxOps = [] {
  CpuOps ops = kVbmiOps;
  ops.name = "amx";
  ops.tiles = &kAmxRounded;
  return ops;
}();

const std::array<InstructionSet, 8> kSets{{
    {&kAmxOps, [](CpuFeatures have) { return have.amx; }},
    {&kAvx512Bf16Ops, [](CpuFeatures have) { return have.avx512bf16; }},
    {&kVbmiOps, [](CpuFeatures have) { return have.vbmi; }},
    {&kAvx512VnniOps, [](CpuFeatures have) { return have.avx512vnni; }},
    {&kAvx512Ops, [](CpuFeatures have) { return have.avx512; }},
    {&kAvxVnniOps, [](CpuFeatures have) { return have.avxvnni; }},
    {&kAvx2Ops, [](CpuFeatures have) { return have.avx2; }},
    {&kScalarOps, [](CpuFeatures) { return true; }},
}};

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures have;
  have.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
  have.avx512 = have.avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  have.avxvnni = have.avx2 && has_avxvnni();
  have.avx512vnni = have.avx512 && __builtin_cpu_supports("avx512vnni") != 0;
  have.vbmi = have.avx512vnni && __builtin_cpu_supports("avx512vbmi") != 0;
  have.avx512bf16 = have.vbmi && __builtin_cpu_supports("avx512bf16") != 0;
  have.amx = have.avx512bf16 && has_tiles();
  return have;
}

std::span<const InstructionSet> instruction_sets() {
  return kSets;
}

}  // namespace dspack::kernels
