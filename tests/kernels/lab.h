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

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/ops_table.h"

namespace dspack::test {

// The instruction sets that may exist, as types, so that each becomes a test case of its own.
struct Scalar {
  static constexpr const char* kName = "scalar";
};
struct Avx2 {
  static constexpr const char* kName = "avx2";
};
struct Avx512 {
  static constexpr const char* kName = "avx512";
};

inline bool runs_here(const std::string& set) {
  return kernels::select_cpu_ops(kernels::detect_cpu_features(), set).has_value();
}

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
  explicit Lab(const std::string& set, unsigned threads = 2) {
    auto made = kernels::make_cpu_device({.threads = threads, .instruction_set = set});
    REQUIRE(made.has_value());
    device_ = std::move(made).value();
    // The suite of one instruction set must not pass by running another.
    REQUIRE(std::string(device_->description()).starts_with("cpu " + set + ","));
    queue_ = device_->make_queue();
  }

  kernels::Queue& queue() { return *queue_; }
  kernels::Device& device() { return *device_; }

  /// Exactly `count` bytes behind an offset of `element_bytes`: aligned to elements and no more, and the sanitizer sees
  /// every byte that is read or written beyond.
  kernels::Slice raw(const void* data, size_t count, size_t element_bytes) {
    auto buffer = device_->allocate(element_bytes + count);
    REQUIRE(buffer.has_value());
    buffers_.push_back(std::move(buffer).value());
    const kernels::Slice place{buffers_.back().get(), element_bytes};
    queue_->upload(place, {static_cast<const std::byte*>(data), count});
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

TYPE_TO_STRING_AS("scalar", dspack::test::Scalar);
TYPE_TO_STRING_AS("avx2", dspack::test::Avx2);
TYPE_TO_STRING_AS("avx512", dspack::test::Avx512);

/// A test case per instruction set. One that this processor or program lacks says so; CTest counts it as skipped.
#define KERNEL_CASE(name) TEST_CASE_TEMPLATE(name, Set, dspack::test::Scalar, dspack::test::Avx2, dspack::test::Avx512)
#define SKIP_UNLESS_SET_RUNS()                                                              \
  do {                                                                                      \
    if (!dspack::test::runs_here(Set::kName)) {                                             \
      MESSAGE("SKIPPED: this machine or program lacks the instruction set " << Set::kName); \
      return;                                                                               \
    }                                                                                       \
  } while (false)
