// exp, norm, activation and sums over rows. For the instruction set files only (see table.inl.h).
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

// exp: x = n ln 2 + r, |r| <= ln 2 / 2; exp(r) by the polynomial of Cephes expf (degree 6, Moshier 1992); times 2^n in
// two factors, so that subnormal results and overflow come out right. Error: at most 1.01 ulp, in the subnormal range
// 0.75 of the smallest number (measured over every third float from -105 to 90, 2026-11).

/// The nearest integer (ties to even) for |value| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
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

/// to[i] = operation(to[i], from[i]) for i < n; a ragged end is padded with zeros and truncated.
template <class V, class Operation>
void update_row(float* to, const float* from, uint32_t n, Operation operation) {
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    operation(V::load(to + i), V::load(from + i)).store(to + i);
  if (i == n) return;
  const V a = load_part<V, LoadF32>(bytes_of(to + i), n - i);
  const V b = load_part<V, LoadF32>(bytes_of(from + i), n - i);
  store_part(operation(a, b), to + i, n - i);
}

template <class V>
V sum_of_squares_lanes(const float* x, uint32_t n) {
  V acc[1][1] = {};
  const std::byte* const w[1] = {bytes_of(x)};
  const float* const rows[1] = {x};
  add_dots<V, LoadF32, 1, 1>(w, rows, n, acc);
  return acc[0][0];
}

/// y = (x * (1 / sqrt(mean + epsilon))) * gain, rounded after each operation.
template <class V>
void rms_norm_rows(const NormTask& task, RowRange rows) {
  const auto gain_at = [&](uint32_t i) { return task.gain == nullptr ? V::set(1.0F) : V::load(task.gain + i); };
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const float* x = task.x + row * task.x_stride;
    float* y = task.y + row * task.y_stride;
    const float mean = sum_of_squares_lanes<V>(x, task.cols).sum() / static_cast<float>(task.cols);
    const V inverse = V::set(1.0F / __builtin_sqrtf(mean + task.epsilon));
    uint32_t i = 0;
    for (; i + kLanes <= task.cols; i += kLanes) {
      V::mul(V::mul(V::load(x + i), inverse), gain_at(i)).store(y + i);
    }
    if (i == task.cols) continue;
    const V last = load_part<V, LoadF32>(bytes_of(x + i), task.cols - i);
    const V gain = task.gain == nullptr ? V::set(1.0F) : load_part<V, LoadF32>(bytes_of(task.gain + i), task.cols - i);
    store_part(V::mul(V::mul(last, inverse), gain), y + i, task.cols - i);
  }
}

/// gate / (1 + exp(-gate)) * up, of clamped values; min and max preserve a NaN.
template <class V>
void silu_multiply_rows(const PairTask& task, float limit, RowRange rows) {
  const V most = V::set(limit);
  const V least = V::set(-limit);
  const auto operation = [most, least](V any_gate, V any_up) {
    const V one = V::set(1.0F);
    const V gate = V::min(most, any_gate);
    const V up = V::max(least, V::min(most, any_up));
    return V::mul(V::div(gate, V::add(one, exponential(V::sub(V::zero(), gate)))), up);
  };
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    update_row<V>(task.to + row * task.to_stride, task.from + row * task.from_stride, task.cols, operation);
  }
}

template <class V>
void add_rows(const PairTask& task, RowRange rows) {
  const auto operation = [](V to, V from) { return V::add(to, from); };
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    update_row<V>(task.to + row * task.to_stride, task.from + row * task.from_stride, task.cols, operation);
  }
}

/// Sums from zero, one fma per slot.
template <class V>
void combine_rows(const CombineTask& task, RowRange rows) {
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    const float* weights = task.weights + size_t{row} * task.top_k;
    const float* parts = task.parts + size_t{row} * task.top_k * task.parts_stride;
    float* y = task.y + row * task.y_stride;
    for (uint32_t i = 0; i < task.cols; ++i)
      y[i] = 0;
    for (uint32_t slot = 0; slot < task.top_k; ++slot) {
      const V weight = V::set(weights[slot]);
      update_row<V>(y, parts + slot * task.parts_stride, task.cols,
                    [weight](V sum, V part) { return V::fma(weight, part, sum); });
    }
  }
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
