// What a device promises besides arithmetic, on a real GPU.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "tests/gpu/real_gpu.h"

namespace dspack::test::device_test {
namespace {

TEST_CASE("gpu: what is uploaded comes back, after a detour within the device") {
  const auto gpu = real_gpu();
  if (gpu == nullptr) return;
  MESSAGE(gpu->description());
  CHECK_FALSE(gpu->is_host());
  std::mt19937 random(std::random_device{}());
  std::vector<uint32_t> values(1'000'003);
  for (uint32_t& value : values)
    value = static_cast<uint32_t>(random());
  const auto bytes = std::as_bytes(std::span(values));
  auto one = gpu->allocate(bytes.size());
  auto other = gpu->allocate(bytes.size() + 256);
  REQUIRE(one.has_value());
  REQUIRE(other.has_value());
  CHECK((*one)->host().empty());
  const auto queue = gpu->make_queue();
  queue->upload({.buffer = one->get()}, bytes);
  queue->copy({.buffer = other->get(), .offset_bytes = 256}, {.buffer = one->get()}, bytes.size());
  std::vector<uint32_t> back(values.size());
  queue->download(std::as_writable_bytes(std::span(back)), {.buffer = other->get(), .offset_bytes = 256});
  queue->synchronize();
  CHECK(back == values);
}

TEST_CASE("gpu: its memory is known, and more than there is, is refused") {
  const auto gpu = real_gpu();
  if (gpu == nullptr) return;
  const kernels::DeviceMemory before = gpu->memory();
  CHECK(before.total_bytes > 0);
  CHECK(before.free_bytes <= before.total_bytes);
  const auto too_much = gpu->allocate(before.total_bytes + 1);
  REQUIRE_FALSE(too_much.has_value());
  CHECK(too_much.error().kind == ErrorKind::budget);
}

TEST_CASE("gpu: buffers stay within the memory that the device was allowed") {
  constexpr uint64_t kAllowed = 8ULL << 20;
  const auto gpu = real_gpu({.vram_bytes = kAllowed});
  if (gpu == nullptr) return;
  auto most = gpu->allocate(kAllowed / 2);
  REQUIRE(most.has_value());
  const auto too_much = gpu->allocate(kAllowed / 2 + 4096);
  REQUIRE_FALSE(too_much.has_value());
  CHECK(too_much.error().kind == ErrorKind::budget);
  most->reset();
  CHECK(gpu->allocate(kAllowed / 2 + 4096).has_value());
}

}  // namespace
}  // namespace dspack::test::device_test
