#include "tests/bench/cuda_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "format/base/check.h"
#include "format/base/size.h"

namespace dspack::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kStepSeconds = 0.02;  // long against the start of a step
constexpr uint32_t kMaxLaunches = 2000;
constexpr uint64_t kAligned = 256;  // where loading puts tensors

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Small numbers of both signs.
void write_number(Dtype dtype, uint32_t random, std::byte* to) {
  const float value = (static_cast<float>(random % 2048) - 1023.5F) / 2048;
  switch (dtype) {
    case Dtype::f8_e4m3: {
      const auto code = static_cast<uint8_t>((random & 0x80U) | (random % 0x60U));  // below 32, never NaN
      std::memcpy(to, &code, 1);
      return;
    }
    case Dtype::bf16: {
      const uint16_t bits = f32_to_bf16(value);
      std::memcpy(to, &bits, 2);
      return;
    }
    case Dtype::f32: std::memcpy(to, &value, 4); return;
    default: DSPACK_CHECK(false, "a number type that is not measured");
  }
}

}  // namespace

double Limits::floor_seconds(const Work& work) const {
  return std::max(work.bytes / bytes_per_second, work.operations / operations_per_second);
}

kernels::Slice Memory::uninitialised(uint64_t bytes) {
  auto buffer = device_.allocate(bytes);
  if (!buffer) throw std::runtime_error(buffer.error().message);
  buffers_.push_back(std::move(*buffer));
  return {.buffer = buffers_.back().get()};
}

kernels::Slice Memory::upload(std::span<const std::byte> bytes) {
  const kernels::Slice place = uninitialised(bytes.size());
  queue_.upload(place, bytes);
  queue_.synchronize();
  return place;
}

kernels::Slice Memory::numbers(Dtype dtype, uint64_t count) {
  constexpr uint64_t kMade = 4 << 20;  // the host makes so many, the device repeats them
  const uint64_t element_bytes = bits_of(dtype) / 8;
  const uint64_t bytes = count * element_bytes;
  std::vector<std::byte> made(std::min(count, kMade) * element_bytes);
  for (uint64_t i = 0; i < made.size(); i += element_bytes)
    write_number(dtype, static_cast<uint32_t>(random_()), made.data() + i);
  const kernels::Slice place = uninitialised(bytes);
  queue_.upload(place, made);
  for (uint64_t done = made.size(); done < bytes; done *= 2)
    queue_.copy(place.at(done), place, std::min(done, bytes - done));
  queue_.synchronize();
  return place;
}

kernels::Rows Memory::rows(uint32_t rows, uint32_t cols) {
  return {.data = numbers(Dtype::f32, uint64_t{rows} * cols), .rows = rows, .cols = cols, .stride = cols};
}

Rotation::Rotation(Memory& memory, Dtype dtype, uint64_t count, uint64_t pool_bytes)
    : place_bytes_(ceil_div(count * bits_of(dtype) / 8, kAligned) * kAligned),
      places_(static_cast<uint32_t>(std::max<uint64_t>(2, ceil_div(pool_bytes, place_bytes_)))),
      pool_(memory.numbers(dtype, places_ * place_bytes_ * 8 / bits_of(dtype))) {}

// What has failed takes no time, and must not pass for a figure.
void CudaBench::finish() {
  if (const auto finished = queue_->finish(); !finished) throw std::runtime_error(finished.error().message);
}

double CudaBench::seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  finish();
  return seconds_since(start);
}

double CudaBench::median_seconds(const std::function<void()>& work) {
  (void)seconds_of(work);
  std::vector<double> seconds(sized<size_t>(9, 1));
  for (double& each : seconds)
    each = seconds_of(work);
  return median(seconds);
}

double CudaBench::seconds_per_launch(uint32_t least_launches, const std::function<void(uint32_t)>& launch) {
  launch(0);  // a recorded operation must find the queue's workspace as large as it needs it
  finish();
  if (options_.profile) return 0;
  const double once = seconds_of([&] { launch(1); });
  const auto filling = static_cast<uint32_t>(std::min<double>(kStepSeconds / once, kMaxLaunches)) + 1;
  const uint32_t launches =
      sized(std::min(std::max({filling, least_launches, 4U}), std::max(kMaxLaunches, least_launches)), 2U);
  const auto step = queue_->record([&] {
    for (uint32_t i = 0; i < launches; ++i)
      launch(i);
  });
  if (step == nullptr) throw std::runtime_error("this device records no steps");
  return median_seconds([&] { queue_->run(*step); }) / launches;
}

double CudaBench::seconds_per_call(uint32_t calls, const std::function<void()>& call) {
  if (options_.profile) {
    call();
    finish();
    return 0;
  }
  const double seconds = median_seconds([&] {
    for (uint32_t i = 0; i < calls; ++i)
      call();
  });
  return seconds / calls;
}

void CudaBench::print_heading() {
  fmt::print("{:<58} | {:>5} | {:>11} | {:>9} | {:>9} | {:>11} | {:>9}\n", "operation", "rows", "us a launch", "GB/s",
             "TFLOP/s", "floor, us", "of floor");
}

void CudaBench::print(const std::string& what, uint32_t rows, const Work& work, double seconds) const {
  if (options_.profile) {
    fmt::print("{}, rows {}\n", what, rows);
    return;
  }
  const double floor = limits_.floor_seconds(work);
  fmt::print("{:<58} | {:>5} | {:>11.2f} | {:>9.1f} | {:>9.2f} | {:>11.3f} | {:>7.1f} %\n", what, rows, 1e6 * seconds,
             1e-9 * work.bytes / seconds, 1e-12 * work.operations / seconds, 1e6 * floor, 100 * floor / seconds);
  (void)std::fflush(stdout);
}

}  // namespace dspack::bench
