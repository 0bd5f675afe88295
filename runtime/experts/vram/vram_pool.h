// Slots of device memory for experts of one layout, and which expert lies in which: the fastest tier. Beside the slots
// of the cache there are a few of a window, through which experts pass that are not kept. Who computes from a slot says
// so (`used_until`); who fills it again waits for that on the device, not on the host. So a slot may change hands as
// soon as the work that reads it is enqueued. Threads: single-thread. Lifetime: borrows the device. Errors: budget;
// unsupported (make_expert_table).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/expert_layout.h"

namespace dspack::runtime {

/// Experts that pass through: while one is computed the next one is copied.
inline constexpr uint64_t kVramWindow = 2;

struct VramSlot {
  uint32_t entry = 0;  // in the pool's table
  ExpertWeights weights;
  bool is_kept = false;                        // holds `key` for the cache
  bool is_prefetch = false;                    // copied on the chance, and not wanted so far
  uint32_t uses = 0;                           // since the expert came
  uint32_t pins = 0;                           // leases
  ExpertKey key;                               // if kept
  std::shared_ptr<kernels::Event> arrival;     // of what was copied there last; null: nothing was, or long ago
  std::shared_ptr<kernels::Event> used_until;  // the last work that reads it; null: none
};

class VramPool {
 public:
  /// `slots`: of the cache, besides the window.
  [[nodiscard]] static Result<std::unique_ptr<VramPool>> make(kernels::Device& device, const ExpertLayout& layout,
                                                              uint64_t slots, std::unique_ptr<EvictionPolicy> policy);
  /// Device memory of such a pool.
  [[nodiscard]] static uint64_t bytes_for(uint64_t expert_bytes, uint64_t slots) {
    return expert_bytes * (slots + kVramWindow);
  }

  /// nullptr: the expert is in no slot of the cache.
  [[nodiscard]] VramSlot* find(ExpertKey key);
  /// A slot of the cache that holds nothing; nullptr: there is none.
  [[nodiscard]] VramSlot* empty();
  /// The slot of the expert that the policy gives up, among those for which `may_go` holds and nobody has pinned;
  /// nullptr: none may. It still holds it.
  [[nodiscard]] VramSlot* victim(const std::function<bool(ExpertKey)>& may_go);
  /// The slot of the window whose turn it is.
  [[nodiscard]] VramSlot& window();

  /// The slot, which holds nothing, holds an expert from now on. The policy is the caller's to tell of it.
  void keep(VramSlot& slot, ExpertKey key);
  /// The slot holds nothing from now on. The policy is told.
  void drop(VramSlot& slot);

  [[nodiscard]] EvictionPolicy& policy() { return *policy_; }
  [[nodiscard]] const ExpertLayout& layout() const { return layout_; }
  [[nodiscard]] const kernels::ExpertTable& table() const { return *table_; }
  [[nodiscard]] uint64_t slots() const { return slots_.size() - kVramWindow; }
  [[nodiscard]] uint64_t used() const { return by_key_.size(); }
  [[nodiscard]] uint64_t size_bytes() const { return memory_->size_bytes(); }

 private:
  VramPool(const ExpertLayout& layout, std::unique_ptr<EvictionPolicy> policy)
      : layout_(layout), policy_(std::move(policy)) {}

  ExpertLayout layout_;
  std::unique_ptr<EvictionPolicy> policy_;
  std::unique_ptr<kernels::Buffer> memory_;
  std::vector<VramSlot> slots_;  // the window's first
  std::unique_ptr<kernels::ExpertTable> table_;
  std::vector<VramSlot*> empty_;
  std::map<ExpertKey, VramSlot*> by_key_;
  uint64_t turn_ = 0;  // of the window
};

}  // namespace dspack::runtime
