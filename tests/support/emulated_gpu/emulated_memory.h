// Device memory of the emulated GPUs. Of one GPU alone each buffer is an allocation of the process, at whose end the
// address sanitizer sees the last byte. Several have a range of addresses each, of which the process may touch only
// that of the GPU whose work runs: what a kernel reads or writes in another's ends the process with a line. Threads: as
// its caller's lock. Lifetime: owns the memory. Errors: null where there is none; DSPACK_CHECK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace dspack::gpu {

class EmulatedMemory {
 public:
  EmulatedMemory() = default;
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;

  /// Whether what is allocated from now on lies in a range of its device.
  void keep_apart(bool are_apart) { are_apart_ = are_apart; }
  /// 256-byte aligned, filled with NaN patterns. Null: there is none.
  [[nodiscard]] void* allocate(unsigned device, uint64_t bytes);
  void release(void* memory);
  /// Work of this device runs from now on.
  void show(unsigned device);

  [[nodiscard]] uint64_t allocated_bytes() const;
  [[nodiscard]] uint64_t allocated_bytes(unsigned device) const;
  /// Whose an address is; nullopt: no device's.
  [[nodiscard]] std::optional<unsigned> owner(const void* place) const;
  /// Whether so many bytes are all of one allocation.
  [[nodiscard]] bool holds(const void* place, uint64_t bytes) const;

 private:
  struct Allocation {
    unsigned device = 0;
    uint64_t bytes = 0;
    bool is_in_range = false;
  };
  using Allocations = std::map<const std::byte*, Allocation>;
  struct Range {
    std::byte* begin = nullptr;
    bool is_shown = false;
  };
  [[nodiscard]] Allocations::const_iterator find(const void* place) const;
  [[nodiscard]] Range* range_of(unsigned device);
  [[nodiscard]] std::byte* place_in(const Range& range, uint64_t bytes) const;

  bool are_apart_ = false;
  Allocations allocations_;
  std::map<unsigned, Range> ranges_;
};

}  // namespace dspack::gpu
