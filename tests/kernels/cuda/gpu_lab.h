// What a test of CUDA kernels needs: a stream, device memory with awkward offsets and poisoned contents, by the words
// of kernels/cuda/runtime.h alone, so that a test may run on hardware, too. Threads: one thread a GpuLab. Lifetime:
// memory lives as long as its GpuLab. Errors: fail the test case.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/kernels/lab.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test {

class GpuLab {
 public:
  /// seed: of the order in which the emulated GPU's threads run.
  explicit GpuLab(uint64_t seed = 0) {
    gpu::configure_emulator({.seed = seed});
    stream_ = gpu::make_stream();
  }
  ~GpuLab() {
    stream_->synchronize();
    for (void* memory : memory_)
      gpu::release(memory);
  }
  GpuLab(const GpuLab&) = delete;
  GpuLab& operator=(const GpuLab&) = delete;

  gpu::Stream& stream() { return *stream_; }

  /// Exactly these values, so that the sanitizer sees every byte that is touched beyond; `offset`: from a multiple of
  /// 256 bytes, in values.
  template <class T>
  T* put(const std::vector<T>& values, size_t offset = 0) {
    auto memory = gpu::allocate((values.size() + offset) * sizeof(T));
    REQUIRE(memory.has_value());
    memory_.push_back(memory.value());
    T* place = static_cast<T*>(memory.value()) + offset;
    stream_->copy_to_device(place, values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return place;
  }
  float* poisoned(size_t count, size_t offset = 0) { return put(std::vector<float>(count, poison()), offset); }
  template <class T>
  std::vector<T> get(const T* place, size_t count) {
    std::vector<T> values(count);
    stream_->copy_to_host(values.data(), place, count * sizeof(T));
    stream_->synchronize();
    return values;
  }

 private:
  std::unique_ptr<gpu::Stream> stream_;
  std::vector<void*> memory_;
};

}  // namespace dspack::test
