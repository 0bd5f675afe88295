// Device memory that a queue takes for itself.
// Threads: single-thread (the queue's). Lifetime: owns its memory. Errors: if allocation fails the GPU counts as
// failed, and no later launch uses the address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/hardware/runtime.h"

namespace dspack::kernels::cuda {

/// Memory that operations share, one after the other. When it grows its earlier memory is kept, since a recorded step
/// may still use it.
class Workspace {
 public:
  explicit Workspace(unsigned device) : device_(device) {}
  ~Workspace() {
    for (void* memory : memory_)
      gpu::release(memory);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// Memory of at least `bytes` bytes, 256-byte aligned.
  [[nodiscard]] std::byte* at_least(uint64_t bytes) {
    if (bytes > size_bytes_) {
      auto memory = gpu::allocate(device_, bytes);
      if (memory) {
        memory_.push_back(*memory);
        size_bytes_ = bytes;
      } else {
        gpu::fail({ErrorKind::budget, std::string(gpu::kNoMemoryLeft) + ": " + memory.error().message});
      }
    }
    return memory_.empty() ? nullptr : static_cast<std::byte*>(memory_.back());
  }
  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }

 private:
  unsigned device_;
  std::vector<void*> memory_;
  uint64_t size_bytes_ = 0;
};

}  // namespace dspack::kernels::cuda
