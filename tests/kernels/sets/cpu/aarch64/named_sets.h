// The instruction sets of AArch64 (kernel_sets.h).
#pragma once

#include <doctest/doctest.h>

namespace dspack::test {

// As types, so that each becomes a test case of its own.
struct Scalar {
  static constexpr const char* kName = "scalar";
};
struct Neon {
  static constexpr const char* kName = "neon";
};

}  // namespace dspack::test

TYPE_TO_STRING_AS("scalar", dspack::test::Scalar);
TYPE_TO_STRING_AS("neon", dspack::test::Neon);

#define DSPACK_KERNEL_SETS dspack::test::Scalar, dspack::test::Neon
