// Slots of memory for experts of one layout, and which expert lies in which. Memory is taken when a slot is first used.
// Threads: single-thread (the store's lock). Lifetime: what gives memory must outlive it; a Slot stays where it is.
// Errors: budget.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/slot_plan.h"
#include "runtime/experts/transfer_pool.h"
#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

struct Slot {
  enum class State { empty, loading, ready, failed };
  uint64_t number = 0;  // among all slots of the store
  std::unique_ptr<kernels::Buffer> memory;
  State state = State::empty;
  ExpertKey key;               // unless empty
  uint32_t pins = 0;           // users: leases, requests that wait, writers of a cache
  std::optional<Error> error;  // if failed
  SlotPlan plan;
  ExpertWeights weights;                 // if ready
  StorageTier tier = StorageTier::disk;  // where it was read from
  Urgency urgency = Urgency::demand;     // of reading it
  bool is_prefetch = false;              // read on the chance, and not wanted so far
  bool may_fail = false;                 // begun on the chance: a failure is no error, it is read again when wanted
  bool is_second_try = false;
  std::chrono::steady_clock::time_point arrival;  // if ready: when it became so

  [[nodiscard]] std::span<std::byte> bytes() const;
};

/// Gives the memory of a slot. Errors: budget.
using SlotMemory = std::function<Result<std::unique_ptr<kernels::Buffer>>(uint64_t bytes)>;

class SlotPool {
 public:
  SlotPool(SlotMemory memory, uint64_t slot_bytes, uint64_t limit, std::unique_ptr<EvictionPolicy> policy);

  /// nullptr: the expert is in no slot.
  [[nodiscard]] Slot* find(ExpertKey key);
  /// An empty slot for the expert, which is then found under its key; nullptr: at the moment none may go. `evicted` is
  /// called for an expert that has to leave; one that is `spared` stays.
  [[nodiscard]] Result<Slot*> take(ExpertKey key, uint64_t number, const std::function<void(const Slot&)>& evicted,
                                   const std::function<bool(ExpertKey)>& spared = {});
  /// A spare expert lies in faster memory as well. Where one has to go, spare ones go first, the one of which that was
  /// said last before the others: it was wanted there last, and will be there longest.
  void set_spare(Slot& slot, bool is_spare);
  /// Makes a slot without pins empty.
  void clear(Slot& slot);

  [[nodiscard]] EvictionPolicy& policy() { return *policy_; }
  [[nodiscard]] uint64_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] uint64_t limit() const { return limit_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Slot>>& slots() const { return slots_; }
  [[nodiscard]] uint64_t used() const { return by_key_.size(); }

 private:
  [[nodiscard]] bool may_go(ExpertKey key) const;
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_leave) const;

  SlotMemory memory_;
  uint64_t slot_bytes_;
  uint64_t limit_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> empty_;
  std::vector<ExpertKey> spares_;  // in the order in which they became so
  struct Hash {
    size_t operator()(ExpertKey key) const {
      return std::hash<uint64_t>()(uint64_t{key.layer.value} << 32U | key.expert.value);
    }
  };
  std::unordered_map<ExpertKey, Slot*, Hash> by_key_;
};

}  // namespace dspack::runtime
