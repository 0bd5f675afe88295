// Buffers of a deferred device (deferred_device.h): its own, which the host does not see, and the host's, which it
// addresses.
// Threads: as the device's queues. Lifetime: operations keep a buffer's memory. Errors: DSPACK_CHECK.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace dspack::test {

class DeferredDevice;

inline constexpr std::byte kPoison{0xFF};

/// What a buffer's operations know of it.
struct DeferredMemory {
  std::unique_ptr<kernels::Buffer> inner;
  const DeferredDevice* device = nullptr;  // whose it is; of the host's memory unused
  bool is_gone = false;
  // Of the host's memory: operations of devices that have not run.
  uint32_t reads_to_come = 0, writes_to_come = 0;
};
using Uses = std::vector<std::shared_ptr<DeferredMemory>>;

class DeferredBuffer final : public kernels::Buffer {
 public:
  DeferredBuffer(std::unique_ptr<kernels::Buffer> inner, const DeferredDevice& device)
      : memory_(std::make_shared<DeferredMemory>()) {
    memory_->inner = std::move(inner);
    memory_->device = &device;
    std::ranges::fill(memory_->inner->host(), kPoison);
  }
  ~DeferredBuffer() override { memory_->is_gone = true; }
  DeferredBuffer(const DeferredBuffer&) = delete;
  DeferredBuffer& operator=(const DeferredBuffer&) = delete;
  [[nodiscard]] uint64_t size_bytes() const override { return memory_->inner->size_bytes(); }
  [[nodiscard]] const std::shared_ptr<DeferredMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<DeferredMemory> memory_;
};

/// The host's memory that the device addresses as well.
class DeferredHostBuffer final : public kernels::Buffer {
 public:
  explicit DeferredHostBuffer(std::unique_ptr<kernels::Buffer> inner) : memory_(std::make_shared<DeferredMemory>()) {
    memory_->inner = std::move(inner);
  }
  ~DeferredHostBuffer() override { memory_->is_gone = true; }
  DeferredHostBuffer(const DeferredHostBuffer&) = delete;
  DeferredHostBuffer& operator=(const DeferredHostBuffer&) = delete;
  [[nodiscard]] uint64_t size_bytes() const override { return memory_->inner->size_bytes(); }
  [[nodiscard]] std::span<std::byte> host() override { return memory_->inner->host(); }
  [[nodiscard]] const std::shared_ptr<DeferredMemory>& memory() const { return memory_; }

 private:
  std::shared_ptr<DeferredMemory> memory_;
};

/// What a device reads of the host's memory, or writes there, from being enqueued to being run. What the host has put
/// there stays until then; what the device writes is poison for the host until then. Where another operation that has
/// not run comes first, its result is no concern of the host's, and neither is seen to.
class HostAccess {
 public:
  enum class Kind { read, write };
  HostAccess(kernels::Slice place, uint64_t bytes, Kind kind);
  [[nodiscard]] bool is_of_host() const { return memory_ != nullptr; }
  /// The operation runs now.
  void run() const;

 private:
  Kind kind_;
  std::shared_ptr<DeferredMemory> memory_;  // null: the place is a device's
  std::span<std::byte> bytes_;
  std::vector<std::byte> then_;
};

}  // namespace dspack::test
