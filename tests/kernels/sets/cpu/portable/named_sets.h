// The one instruction set of a processor family without its own (kernel_sets.h).
#pragma once

#include <doctest/doctest.h>

namespace dspack::test {

// As types, so that each becomes a test case of its own.
struct Scalar {
  static constexpr const char* kName = "scalar";
};

}  // namespace dspack::test

TYPE_TO_STRING_AS("scalar", dspack::test::Scalar);

#define DSPACK_KERNEL_SETS dspack::test::Scalar
