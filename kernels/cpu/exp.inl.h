// exp on 16 lanes. For the instruction set files only (see table.inl.h).
//
// x = n ln 2 + r, |r| <= ln 2 / 2; exp(r) by the polynomial of Cephes expf (degree 6, Moshier 1992); times 2^n in two
// factors, so that results below the smallest normal number and above the largest come out as they should. Error: at
// most 1.01 units in the last place, 0.75 of the smallest number below the normal range (measured over every third
// float from -105 to 90, 2026-11).
#pragma once

#include "kernels/cpu/dot_tile.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// The nearest integer (ties to even) of |value| < 2^22: adding 1.5 * 2^23 leaves no room for a fraction.
template <class V>
V round_to_integer(V value) {
  const V magic = V::set(12582912.0F);
  return V::sub(V::add(value, magic), magic);
}

/// NaN stays NaN, -inf gives 0, +inf gives +inf.
template <class V>
V exponential(V argument) {
  // min(bound, x) keeps a NaN in x. Beyond the bounds the result is 0 or infinity anyway.
  const V x = V::max(V::set(-104.0F), V::min(V::set(89.0F), argument));
  const V n = round_to_integer(V::mul(x, V::set(1.44269504F)));
  V r = V::fma(n, V::set(-0.693359375F), x);  // exact: nine bits of ln 2 times an integer below 2^8
  r = V::fma(n, V::set(2.12194440e-4F), r);
  V p = V::set(1.9875691500e-4F);
  p = V::fma(p, r, V::set(1.3981999507e-3F));
  p = V::fma(p, r, V::set(8.3334519073e-3F));
  p = V::fma(p, r, V::set(4.1665795894e-2F));
  p = V::fma(p, r, V::set(1.6666665459e-1F));
  p = V::fma(p, r, V::set(5.0000001201e-1F));
  p = V::add(V::fma(p, V::mul(r, r), r), V::set(1.0F));
  const V half = round_to_integer(V::mul(n, V::set(0.5F)));
  return V::mul(V::mul(p, V::power_of_two(half)), V::power_of_two(V::sub(n, half)));
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
