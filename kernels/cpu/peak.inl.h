// What an instruction set computes at most: fused multiply-adds whose operands stay in registers and do not depend on
// each other. Included by table.inl.h only.
#pragma once

#include <cstdint>

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Runs `rounds` of them. Returns how many multiplications (and as many additions) that were.
template <class V>
uint64_t multiply_add_rounds(uint64_t rounds) {
  constexpr uint32_t kChains = V::kTileOutputs * V::kTileRows;  // as many accumulators as a product has
  V sums[kChains];
  for (V& sum : sums)
    sum = V::zero();
  const V factor = V::set(0.5F), term = V::set(1);
  for (uint64_t round = 0; round < rounds; ++round) {
    for (V& sum : sums)
      sum = V::fma(factor, term, sum);  // to its third operand: some families have no other
  }
  // Stored where the compiler must believe that somebody looks, at every lane: what nobody looks at is not computed.
  for (const V& sum : sums) {
    volatile float seen = sum.sum();
    (void)seen;
  }
  return rounds * kChains * 16;
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
