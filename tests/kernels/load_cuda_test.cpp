#include "kernels/load_cuda.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "dspack_cuda_build.h"

namespace dspack::test::load_cuda_test {
namespace {

Error refusal_of(const std::string& library, const kernels::CudaOptions& options = {}) {
  auto device = kernels::load_cuda_device(library, options);
  REQUIRE_FALSE(device.has_value());
  CHECK(device.error().message.find('\n') == std::string::npos);
  return device.error();
}

TEST_CASE("cuda library: one that is not there") {
  const Error error = refusal_of("/nowhere/libdspack_cuda.so");
  CHECK(error.kind == ErrorKind::not_found);
  CHECK(error.message == "there is no CUDA library /nowhere/libdspack_cuda.so");
}

TEST_CASE("cuda library: beside a program that has none it is said where it was looked for, or why none was built") {
  const Error error = refusal_of("");  // test programs lie in folders of their own
  CHECK(error.kind == ErrorKind::not_found);
  const std::string expected = std::string_view(kCudaAbsence).empty() ? "--dev cuda-library" : kCudaAbsence;
  CHECK(error.message.find(expected) != std::string::npos);
}

TEST_CASE("cuda library: a file that is no library") {
  const std::string path = DSPACK_TEST_DATA "/tiny-v3/README.md";
  const Error error = refusal_of(path);
  CHECK(error.kind == ErrorKind::unsupported);
  CHECK(error.message.find("does not load: " + path) != std::string::npos);
}

TEST_CASE("cuda library: a library of something else") {
  const Error error = refusal_of(DSPACK_OTHER_LIBRARY);
  CHECK(error.kind == ErrorKind::unsupported);
  CHECK(error.message.find("is no CUDA library of dspack") != std::string::npos);
}

TEST_CASE("cuda library: one of another build is refused, whatever it would do") {
  const Error error = refusal_of(DSPACK_LIBRARY_OF_ANOTHER_BUILD);
  CHECK(error.kind == ErrorKind::unsupported);
  CHECK(error.message.find("build the two together") != std::string::npos);
}

TEST_CASE("cuda library: what it says itself comes through, and again when it is asked again") {
  for (const unsigned index : {0U, 7U}) {
    const Error error = refusal_of(DSPACK_LIBRARY_WITHOUT_GPU, {.index = index});
    CHECK(error.kind == ErrorKind::not_found);
    CHECK(error.message == "no GPU " + std::to_string(index));
  }
}

TEST_CASE("cuda library: a driver leaves traces in the file system") {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("dspack-driver-" + std::to_string(std::random_device()()));
  CHECK_FALSE(kernels::has_nvidia_driver(root.string()));
  for (const char* trace : {"proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg"}) {
    CAPTURE(trace);
    std::filesystem::create_directories((root / trace).parent_path());
    CHECK_FALSE(kernels::has_nvidia_driver((root / "dev").string()));
    std::ofstream(root / trace) << "x";
    CHECK(kernels::has_nvidia_driver(root.string()));
    std::filesystem::remove_all(root);
    CHECK_FALSE(kernels::has_nvidia_driver(root.string()));
  }
}

}  // namespace
}  // namespace dspack::test::load_cuda_test
