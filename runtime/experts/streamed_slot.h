// A slot of the host's cache of experts, which streamed_store.cpp fills from files. What a cache in faster memory says
// and asks of slots is in the source of this name: which experts it has and uses, and slots for those that leave it.
// Threads: the store's lock. Lifetime: of the store. Errors: none.
#pragma once

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

struct StreamedStore::Slot final : CacheSlot {
  std::unique_ptr<kernels::Buffer> memory;
  const SlotPlan* plan = nullptr;  // of the expert
  bool is_loading = false;
  std::optional<Error> error;         // reading has failed
  Medium medium = Medium::disk;       // where it was read from
  Urgency urgency = Urgency::demand;  // of reading it
  bool may_fail = false;              // begun before it was wanted: a failure is no error, it is read again then
  bool is_guess = false;              // begun as a prefetch of what may come to be wanted
  bool is_second_try = false;
  std::chrono::steady_clock::time_point arrival;  // if ready: when it became so

  [[nodiscard]] std::span<std::byte> memory_bytes() const { return kernels::host_bytes(*memory); }
};

}  // namespace dspack::runtime
