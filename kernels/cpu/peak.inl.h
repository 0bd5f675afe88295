// Peak arithmetic of an instruction set: independent fused multiply-adds whose operands stay in registers. Included by
// table.inl.h only.
#pragma once

#include <cstdint>

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Runs `rounds` rounds of multiply-adds. Returns the number of multiplications (equal to the number of additions).
template <class V>
uint64_t multiply_add_rounds(uint64_t rounds) {
  constexpr uint32_t kChains = V::kTileOutputs * V::kTileRows;  // as many accumulators as a product has
  V sums[kChains];
  for (V& sum : sums)
    sum = V::zero();
  const V factor = V::set(0.5F), term = V::set(1);
  for (uint64_t round = 0; round < rounds; ++round) {
    for (V& sum : sums)
      sum = V::fma(factor, term, sum);  // accumulates into the third operand: some families have no other form
  }
  // Stores every lane's sum to a volatile, so that the compiler cannot remove the computation.
  for (const V& sum : sums) {
    volatile float seen = sum.sum();
    (void)seen;
  }
  return rounds * kChains * 16;
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
