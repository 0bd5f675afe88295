// A slot of the host's cache of experts, which streamed_store.cpp fills from files. The calls of a cache in faster
// memory are in streamed_slot.cpp: which experts it has and uses, and slots for experts that leave it.
// Threads: the store's lock. Lifetime: the store's. Errors: none.
#pragma once

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

struct StreamedStore::Slot final : CacheSlot {
  std::unique_ptr<kernels::Buffer> memory;
  const SlotPlan* plan = nullptr;  // the expert's layout
  bool is_loading = false;
  std::optional<Error> error;         // reading has failed
  Medium medium = Medium::disk;       // where it was read from
  Urgency urgency = Urgency::demand;  // how urgently it is read
  bool may_fail = false;              // begun before it was wanted: a failure is no error, it is read again when wanted
  bool is_guess = false;              // begun as a speculative prefetch
  bool is_second_try = false;
  std::chrono::steady_clock::time_point arrival;  // when it became ready

  [[nodiscard]] std::span<std::byte> memory_bytes() const { return kernels::host_bytes(*memory); }
};

}  // namespace dspack::runtime
