// Builds the table of one instruction set. Included only by scalar.cpp, neon.cpp, avx2.cpp and avx512.cpp, each
// compiled with its own flags; each provides its vector V, a struct in an anonymous namespace. Everything below is a
// template on V or in an anonymous namespace, so that no function compiled for one instruction set can be linked in
// place of another's.
//
// V is 16 lanes of FP32 (see ops_table.h for why always 16):
//   kTileOutputs x kTileRows   accumulators of a dot product tile that fit the registers beside the operands
//   kTileColumns x kTileRows   same for column sums
//   kPanelVectors x kPanelTileRows   accumulators of a panel tile, two registers each, plus operands (panels.inl.h)
//   zero set load load_f32 load_bf16 load_f16 load_i8 load_e4m3_over_256     the last returns value / 256, exactly
//   load_nibbles   16 values of a table, indexed by four-bit codes, low half of a byte first
//   kPairsNibbles   load_nibbles_paired does the same faster, with elements i and i + 8 in lanes 2 i and 2 i + 1;
//                   pair_lanes puts a vector in that order, part_lanes undoes it
//   nibble_columns   for lanes that hold eight codes each: vector i has the values of the lanes' codes i
//   load_e4m3_unmended, NanWatch   load without NaN handling, and detection of NaN codes, 64 at a time
//   fma add sub mul div min max     min(a, b) = a < b ? a : b, max(a, b) = a > b ? a : b, hence b if either is NaN
//   power_of_two(n)   2^n for integers -126 <= n <= 127
//   transpose   16 vectors as a square
//   store, first, sum   sum adds lanes 8 apart, then 4, 2, 1
//   kHasSums   sums gives the sum of each of 16 vectors at once, with the same bits
// and the integers that int8.inl.h lists.
#pragma once

#include "kernels/cpu/attend.inl.h"
#include "kernels/cpu/columns.inl.h"
#include "kernels/cpu/elementwise.inl.h"
#include "kernels/cpu/index.inl.h"
#include "kernels/cpu/int8.inl.h"
#include "kernels/cpu/linear.inl.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/panels.inl.h"
#include "kernels/cpu/peak.inl.h"
#include "kernels/cpu/quantise.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

template <class V, class... L>
consteval CpuOps make_table(std::string_view name, LoadList<L...> /*loads*/) {
  return {
      .name = name,
      .linear = {linear_rows<V, L>...},
      .panels = {.group_rows = V::kPanelTileRows,
                 .x_values = panel_x_values<V>,
                 .pack = pack_x<V>,
                 .linear = {panel_rows<V, L>...}},
      .columns = {columns_range<V, L>...},
      .rms_norm = rms_norm_rows<V>,
      .silu_multiply = silu_multiply_rows<V>,
      .add = add_rows<V>,
      .combine = combine_rows<V>,
      .attend_f32 = attend_items<V, LoadF32>,
      .attend_bf16 = attend_items<V, LoadBf16>,
      .attend_f16 = attend_items<V, LoadF16>,
      .attend_f8_e4m3 = attend_items<V, LoadF32, DecodedBlocks<V>>,
      .window_attend_f32 = attend_items<V, LoadF32, WindowBlocks<LoadF32>>,
      .window_attend_bf16 = attend_items<V, LoadBf16, WindowBlocks<LoadBf16>>,
      .window_attend_f16 = attend_items<V, LoadF16, WindowBlocks<LoadF16>>,
      .index_f32 = index_scores<V, LoadF32>,
      .index_bf16 = index_scores<V, LoadBf16>,
      .index_f16 = index_scores<V, LoadF16>,
      .index_f8_e4m3 = index_scores<V, LoadE4m3>,
      .int8 = &kInt8Products<V>,
      .quantise_int4 = quantise_groups<V, 32, 16, uint16_t, int4_lanes<V>>,
      .quantise_int8 = quantise_groups<V, 32, 32, uint16_t, int8_lanes<V>>,
      .quantise_nvfp4 = quantise_groups<V, 16, 8, uint8_t, nvfp4_lanes<V>>,
      .multiply_adds = multiply_add_rounds<V>,
  };
}

template <class V>
consteval CpuOps make_table(std::string_view name) {
  return make_table<V>(name, Loads());
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
