// Numbers from the host for one operation (row numbers, groups of assignments) on their way to the device. A kernel
// fetches them from pinned memory, since an upload would queue after other streams' copies to the device, possibly tens
// of megabytes of experts.
// Threads: single-thread (the queue's). Lifetime: owns its memory. Errors: if allocation fails the GPU counts as
// failed, as in workspace.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/hardware/runtime.h"
#include "kernels/cuda/host/workspace.h"

namespace dspack::kernels::cuda {

/// Capacity between two synchronisations of the stream; larger if one operation needs more.
inline constexpr uint64_t kIndexSpaceBytes = 1 << 20;

class IndexSpace {
 public:
  explicit IndexSpace(unsigned device) : on_device_(device) {}
  ~IndexSpace();
  IndexSpace(const IndexSpace&) = delete;
  IndexSpace& operator=(const IndexSpace&) = delete;

  /// Whether `bytes` more bytes fit before `clear`.
  [[nodiscard]] bool has_room(uint64_t bytes) const { return used_bytes_ + bytes <= on_device_.size_bytes(); }
  /// Makes room for `bytes`, at least kIndexSpaceBytes. Precondition: the stream has been synchronised.
  void clear(uint64_t bytes);
  /// Copies numbers to device memory for operations enqueued from now on; null if the GPU has failed. `numbers` are
  /// borrowed for the call. Precondition: has_room.
  [[nodiscard]] const uint32_t* put(gpu::Stream& stream, std::span<const uint32_t> numbers);
  /// Same without a copy to the device: kernels read the numbers from pinned host memory, which is faster if each is
  /// read once.
  [[nodiscard]] const uint32_t* keep(std::span<const uint32_t> numbers);

 private:
  Workspace on_device_;
  std::byte* pinned_ = nullptr;  // same size as on_device_
  uint64_t used_bytes_ = 0;      // in both memories
};

}  // namespace dspack::kernels::cuda
