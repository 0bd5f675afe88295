// Numbers that the host has for one operation (row numbers, groups of assignments) on their way to the device. A kernel
// fetches them from pinned memory: an upload would wait behind whatever other streams copy to the device, which may be
// experts of tens of megabytes.
// Threads: single-thread (the queue's). Lifetime: owns its memory. Errors: without memory the GPU has failed, as in
// workspace.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/workspace.h"

namespace dspack::kernels::cuda {

/// Of numbers that were put there since the stream was last synchronised, unless one operation has more.
inline constexpr uint64_t kIndexSpaceBytes = 1 << 20;

class IndexSpace {
 public:
  explicit IndexSpace(unsigned device) : on_device_(device) {}
  ~IndexSpace();
  IndexSpace(const IndexSpace&) = delete;
  IndexSpace& operator=(const IndexSpace&) = delete;

  /// Whether so many more numbers fit before `clear`.
  [[nodiscard]] bool has_room(uint64_t bytes) const { return used_bytes_ + bytes <= on_device_.size_bytes(); }
  /// Room for so many, and kIndexSpaceBytes at least. Precondition: the stream has been synchronised.
  void clear(uint64_t bytes);
  /// Where the numbers are for what is enqueued from now on; null where the GPU has failed. They are borrowed for the
  /// call. Precondition: has_room.
  [[nodiscard]] const uint32_t* put(gpu::Stream& stream, std::span<const uint32_t> numbers);
  /// The same without a copy: they are read where they are, in the host's memory, which is sooner if each is read once.
  [[nodiscard]] const uint32_t* keep(std::span<const uint32_t> numbers);

 private:
  Workspace on_device_;
  std::byte* pinned_ = nullptr;  // as large as on_device_
  uint64_t used_bytes_ = 0;      // of both
};

}  // namespace dspack::kernels::cuda
