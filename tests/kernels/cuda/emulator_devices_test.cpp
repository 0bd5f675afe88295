// Several GPUs of one emulated machine: each has memory of its own, the host's pinned memory is every one's, and what
// belongs to another ends the process.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/host/cuda_device.h"
#include "tests/kernels/cuda/emulator_lab.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test::emulator_devices_test {
namespace {

/// Two GPUs, for its time.
struct TwoCards {
  explicit TwoCards(uint64_t seed = 0, uint64_t memory_bytes = 1 << 28) {
    gpu::EmulatorSettings settings;
    settings.seed = seed;
    settings.devices = 2;
    settings.memory_bytes = memory_bytes;
    gpu::configure_emulator(settings);
  }
  ~TwoCards() { gpu::configure_emulator({}); }
  TwoCards(const TwoCards&) = delete;
  TwoCards& operator=(const TwoCards&) = delete;
};

__global__ void add_one(float* values) {
  values[gpu::thread_index()] += 1;
}

std::unique_ptr<kernels::Device> card(unsigned index) {
  auto made = kernels::make_cuda_device({.index = index});
  REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
  return std::move(*made);
}

TEST_CASE("emulated GPUs: a kernel of one that touches memory of another ends the process, and so does a copy") {
  const TwoCards cards;
  auto* const first = static_cast<float*>(gpu::allocate(0, 128).value());
  auto* const second = static_cast<float*>(gpu::allocate(1, 128).value());
  const auto add_on = [](unsigned device, float* values) {
    const auto stream = gpu::make_stream(device);
    stream->fill(nullptr, 0, 0);
    gpu::launch(*stream, {.threads = 32}, add_one, values);
    stream->synchronize();
  };
  CHECK_FALSE(aborts([&] { add_on(0, first); }));
  CHECK_FALSE(aborts([&] { add_on(1, second); }));
  const Ending ending = end_of([&] { add_on(0, second); });
  CHECK(ending.is_abort);
  CHECK(ending.text.find("memory of another device") != std::string::npos);
  CHECK(aborts([&] { add_on(1, first); }));
  CHECK(aborts([&] {
    float value = 0;
    gpu::make_stream(0)->copy_to_device(second, &value, sizeof value);
  }));
  gpu::release(first);
  gpu::release(second);
}

TEST_CASE("emulated GPUs: memory is counted for each") {
  const TwoCards cards(0, 1000);
  void* const first = gpu::allocate(0, 900).value();
  CHECK_FALSE(gpu::allocate(0, 200));
  CHECK(gpu::free_bytes(0) == 100);
  CHECK(gpu::free_bytes(1) == 1000);
  void* const second = gpu::allocate(1, 1000).value();
  CHECK(gpu::emulator_counts().allocated_bytes == 1900);
  gpu::release(first);
  gpu::release(second);
  CHECK(gpu::free_bytes(0) == 1000);
  const auto absent = gpu::open_device(2);
  REQUIRE_FALSE(absent);
  CHECK(absent.error().kind == ErrorKind::not_found);
}

TEST_CASE("emulated GPUs: rows pass from one device to another through pinned memory, in the order of events") {
  constexpr uint32_t kRows = 5;
  constexpr uint32_t kCols = 40;
  constexpr uint64_t kBytes = kRows * kCols * sizeof(float);
  std::vector<float> values(kRows * kCols);
  std::iota(values.begin(), values.end(), 1.0F);
  const std::vector<uint32_t> order = {3, 0, 4, 1, 2};
  for (uint64_t seed = 1; seed < 12; ++seed) {
    const TwoCards cards(seed);
    const auto first = card(0);
    const auto second = card(1);
    const auto from = first->make_queue();
    const auto to = second->make_queue();
    const auto here = first->allocate(kBytes).value();
    const auto there = second->allocate(kBytes).value();
    const auto pinned = first->allocate_host(kBytes).value();
    const auto rows = [](kernels::Buffer& buffer) {
      return kernels::Rows{
          .data = {.buffer = &buffer, .offset_bytes = 0}, .rows = kRows, .cols = kCols, .stride = kCols};
    };
    from->upload({.buffer = here.get(), .offset_bytes = 0}, std::as_bytes(std::span(values)));
    from->gather_rows(rows(*pinned), rows(*here), order);
    to->wait(*from->mark());
    to->scatter_rows(rows(*there), rows(*pinned), order);
    std::vector<float> arrived(values.size());
    to->download(std::as_writable_bytes(std::span(arrived)), {.buffer = there.get(), .offset_bytes = 0});
    to->synchronize();
    from->synchronize();
    CHECK(arrived == values);
  }
}

}  // namespace
}  // namespace dspack::test::emulator_devices_test
