// What tests of CUDA kernels need: a stream and device memory that goes with the test. Threads: one thread a lab.
// Lifetime: addresses live as long as their lab. Errors: fail the test case.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/hardware/runtime.h"
#include "tests/kernels/lab.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test {

class GpuLab {
 public:
  /// `seed`: of the order in which blocks and threads take turns.
  explicit GpuLab(uint64_t seed) {
    gpu::EmulatorSettings settings;
    settings.seed = seed;
    gpu::configure_emulator(settings);
    const auto properties = gpu::open_device(0);
    REQUIRE(properties.has_value());
    stream_ = gpu::make_stream(0);
  }
  GpuLab(const GpuLab&) = delete;
  GpuLab& operator=(const GpuLab&) = delete;
  ~GpuLab() {
    stream_->synchronize();
    for (void* place : places_)
      gpu::release(place);
  }

  gpu::Stream& stream() { return *stream_; }

  /// `offset_bytes` behind a multiple of 256 bytes, and no byte more than `values`.
  template <class T>
  T* put(const std::vector<T>& values, size_t offset_bytes = 0) {
    auto place = gpu::allocate(0, offset_bytes + values.size() * sizeof(T));
    REQUIRE(place.has_value());
    places_.push_back(*place);
    auto* at = static_cast<std::byte*>(*place) + offset_bytes;
    stream_->copy_to_device(at, values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return reinterpret_cast<T*>(at);
  }
  float* poisoned(size_t count, size_t offset_bytes = 0) {
    return put(std::vector<float>(count, poison()), offset_bytes);
  }
  template <class T>
  std::vector<T> get(const T* place, size_t count) {
    std::vector<T> values(count);
    stream_->copy_to_host(values.data(), place, count * sizeof(T));
    stream_->synchronize();
    return values;
  }

 private:
  std::unique_ptr<gpu::Stream> stream_;
  std::vector<void*> places_;
};

}  // namespace dspack::test
