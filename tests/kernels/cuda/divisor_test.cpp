#include "kernels/cuda/device/divisor.cuh"

#include <doctest/doctest.h>

namespace dspack::kernels::cuda::device::divisor_test {

TEST_CASE("cuda: division by a number that the host knows") {
  constexpr uint32_t kEnd = 1U << 31U;
  const auto check = [](uint32_t number, uint32_t divisor) {
    if (divide(number, divisor_of(divisor)) != number / divisor) FAIL_CHECK(number, " / ", divisor);
  };
  for (uint32_t divisor = 1; divisor < kEnd / 2; divisor += 1 + divisor / 7) {
    for (uint32_t number = 0; number < 300; ++number)
      check(number, divisor);
    // Where the quotient changes, from the smallest to the largest.
    for (uint64_t multiple = divisor; multiple <= kEnd; multiple += divisor * (1 + multiple / divisor / 5)) {
      check(static_cast<uint32_t>(multiple - 1), divisor);
      if (multiple < kEnd) check(static_cast<uint32_t>(multiple), divisor);
    }
    check(kEnd - 1, divisor);
    check(kEnd - 1 - kEnd % divisor, divisor);
  }
  check(kEnd - 1, kEnd - 1);
  check(kEnd - 2, kEnd - 1);
}

}  // namespace dspack::kernels::cuda::device::divisor_test
