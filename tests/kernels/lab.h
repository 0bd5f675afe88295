// What every kernel test needs: a device that is forced to one instruction set, buffers with awkward offsets and
// poisoned contents, and random numbers whose seed is told. Threads: one thread a Lab. Lifetime: slices live as long as
// their Lab. Errors: fail the test case.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernel_sets.h"  // of the folder that the build picks: what the tests run on
#include "kernels/ops.h"

namespace dspack::test {

/// DSPACK_TEST_SEED repeats a run; otherwise every run sees other numbers.
class Random {
 public:
  Random() : seed_(fresh_seed()), engine_(seed_) {}
  [[nodiscard]] uint32_t seed() const { return seed_; }
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(engine_() % bound); }
  uint32_t between(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
  float normal() { return normal_(engine_); }
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
  std::vector<float> normals(size_t count) {
    std::vector<float> values(count);
    for (float& value : values)
      value = normal();
    return values;
  }

 private:
  static uint32_t fresh_seed() {
    const char* fixed = std::getenv("DSPACK_TEST_SEED");
    return fixed != nullptr ? static_cast<uint32_t>(std::strtoul(fixed, nullptr, 10)) : std::random_device{}();
  }
  uint32_t seed_;
  std::mt19937 engine_;
  std::normal_distribution<float> normal_{0.0F, 1.0F};
};

/// A NaN that no kernel produces: what is still this afterwards has not been written.
inline float poison() {
  return std::bit_cast<float>(0x7fc0deadU);
}
inline bool is_poison(float value) {
  return std::bit_cast<uint32_t>(value) == 0x7fc0deadU;
}

class Lab {
 public:
  explicit Lab(const std::string& set, unsigned threads = 2) : set_(set) {
    auto made = make_set_device(set, threads);
    REQUIRE(made.has_value());
    device_ = std::move(made).value();
    // The suite of one set must not pass by running another.
    REQUIRE(std::string(device_->description()).starts_with(description_of(set)));
    queue_ = device_->make_queue();
  }

  /// On a device of the set that is made otherwise.
  Lab(const std::string& set, std::unique_ptr<kernels::Device> device) : set_(set), device_(std::move(device)) {
    REQUIRE(std::string(device_->description()).starts_with(description_of(set)));
    queue_ = device_->make_queue();
  }

  kernels::Queue& queue() { return *queue_; }
  kernels::Device& device() { return *device_; }

  /// Exactly `count` bytes behind an offset: the sanitizer sees every byte that is read or written beyond.
  kernels::Slice raw(const void* data, size_t count, size_t element_bytes) {
    const size_t offset = offset_for(set_, element_bytes);
    auto buffer = device_->allocate(offset + count);
    REQUIRE(buffer.has_value());
    buffers_.push_back(std::move(buffer).value());
    const kernels::Slice place{buffers_.back().get(), offset};
    queue_->upload(place, {static_cast<const std::byte*>(data), count});
    queue_->synchronize();
    return place;
  }
  template <class T>
  kernels::Slice put(const std::vector<T>& values) {
    return raw(values.data(), values.size() * sizeof(T), sizeof(T));
  }
  kernels::Slice poisoned(size_t count) { return put(std::vector<float>(count, poison())); }
  template <class T = float>
  std::vector<T> get(kernels::Slice place, size_t count) {
    std::vector<T> values(count);
    queue_->download({reinterpret_cast<std::byte*>(values.data()), count * sizeof(T)}, place);
    queue_->synchronize();
    return values;
  }

 private:
  std::string set_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Queue> queue_;
  std::vector<std::unique_ptr<kernels::Buffer>> buffers_;
};

/// The values of a [rows, cols] matrix stored with a stride. Fails if the gaps between the rows have been written.
inline std::vector<float> dense(const std::vector<float>& stored, size_t rows, size_t cols, size_t stride) {
  std::vector<float> values;
  size_t touched = 0;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < stride && r * stride + c < stored.size(); ++c) {
      const float value = stored[r * stride + c];
      if (c < cols) {
        values.push_back(value);
      } else {
        touched += is_poison(value) ? 0 : 1;
      }
    }
  }
  CHECK(touched == 0);
  return values;
}

}  // namespace dspack::test

/// A test case for each set. One that this processor or program lacks says so; CTest counts it as skipped.
#define KERNEL_CASE(name) TEST_CASE_TEMPLATE(name, Set, DSPACK_KERNEL_SETS)
#define SKIP_UNLESS_RUNS(set)                                                      \
  do {                                                                             \
    if (!dspack::test::runs_here(set)) {                                           \
      MESSAGE("SKIPPED: this machine or program cannot run " << std::string(set)); \
      return;                                                                      \
    }                                                                              \
  } while (false)
#define SKIP_UNLESS_SET_RUNS() SKIP_UNLESS_RUNS(Set::kName)
