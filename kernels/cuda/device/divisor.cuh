// Division by a number known to the host: two dependent instructions, while a general division takes some twenty.
//
//   n / d = n * ceil(2^(31 + l) / d) >> (31 + l)     l = ceil(log2 d), n < 2^31
//
// d times the factor exceeds 2^(31 + l) by less than d <= 2^l, which adds less than n / 2^31 / d < 1 / d to the
// quotient.
#pragma once

#include <dspack_gpu.h>

#include <bit>
#include <cstdint>

namespace dspack::kernels::cuda::device {

struct Divisor {
  uint32_t factor;
  uint32_t shift;
};

/// Precondition: 0 < number < 2^31.
[[nodiscard]] constexpr Divisor divisor_of(uint32_t number) {
  const auto bits = static_cast<uint32_t>(std::bit_width(number - 1));
  return {static_cast<uint32_t>(((uint64_t{1} << (31 + bits)) + number - 1) / number), 31 + bits};
}

/// Precondition: number < 2^31.
[[nodiscard]] __device__ __forceinline__ uint32_t divide(uint32_t number, const Divisor& divisor) {
  return static_cast<uint32_t>(uint64_t{number} * divisor.factor >> divisor.shift);
}

}  // namespace dspack::kernels::cuda::device
