#include <doctest/doctest.h>

#include "kernels/cuda/linear/cublaslt.h"

namespace dspack::test::load_cublaslt_test {
namespace {

using gpu::cublaslt::open_library;

Error refusal_of(const std::string& file) {
  const auto library = open_library(file);
  REQUIRE_FALSE(library.has_value());
  return library.error();
}

}  // namespace

TEST_CASE("cuBLASLt: a library that is named, loads and starts is used") {
  const auto library = open_library(DSPACK_CUBLASLT_STAND_IN);
  REQUIRE(library.has_value());
  CHECK((*library)->version() == 120'904);
  CHECK((*library)->version_words() == "12.9.4");
}

TEST_CASE("cuBLASLt: why a library is not used") {
  CHECK(refusal_of("/nowhere/libcublasLt.so").message == "there is no cuBLASLt /nowhere/libcublasLt.so");
  CHECK(refusal_of("libcublasLt.so.13").message == "there is no cuBLASLt libcublasLt.so.13");  // a file, no name
  const Error silent = refusal_of(DSPACK_CUBLASLT_SILENT);
  CHECK(silent.kind == ErrorKind::unsupported);
  CHECK(silent.message.ends_with(" does not start: status 1"));
  const Error other = refusal_of(DSPACK_OTHER_LIBRARY);
  CHECK(other.kind == ErrorKind::unsupported);
  CHECK(other.message.ends_with(" is no cuBLASLt of version 12 or 13"));
  const Error unloadable = refusal_of(DSPACK_TEST_DATA "/tiny-v3/config.json");
  CHECK(unloadable.message.starts_with("cuBLASLt does not load: "));
}

}  // namespace dspack::test::load_cublaslt_test
