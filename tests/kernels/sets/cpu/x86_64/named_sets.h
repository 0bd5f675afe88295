// The instruction sets of x86-64 whose exact products are tested one by one (kernel_sets.h).
#pragma once

#include <doctest/doctest.h>

namespace dspack::test {

// As types, so that each becomes a test case of its own.
struct Scalar {
  static constexpr const char* kName = "scalar";
};
struct Avx2 {
  static constexpr const char* kName = "avx2";
};
struct Avx512 {
  static constexpr const char* kName = "avx512";
};
struct Vbmi {
  static constexpr const char* kName = "vbmi";
};

}  // namespace dspack::test

TYPE_TO_STRING_AS("scalar", dspack::test::Scalar);
TYPE_TO_STRING_AS("avx2", dspack::test::Avx2);
TYPE_TO_STRING_AS("avx512", dspack::test::Avx512);
TYPE_TO_STRING_AS("vbmi", dspack::test::Vbmi);

#define DSPACK_KERNEL_SETS dspack::test::Scalar, dspack::test::Avx2, dspack::test::Avx512, dspack::test::Vbmi
