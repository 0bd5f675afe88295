#include "runtime/experts/vram/vram_pool.h"

#include <fmt/format.h>

#include "format/base/check.h"

namespace dspack::runtime {

Result<std::unique_ptr<VramPool>> VramPool::make(kernels::Device& device, const ExpertLayout& layout, uint64_t slots,
                                                 std::unique_ptr<EvictionPolicy> policy) {
  std::unique_ptr<VramPool> pool(new VramPool(layout, std::move(policy)));
  auto memory = device.allocate(bytes_for(layout.expert_bytes, slots));
  if (!memory) return memory.error().in(fmt::format("device memory for {} experts", slots + kVramWindow));
  pool->memory_ = std::move(*memory);
  pool->slots_.resize(slots + kVramWindow);
  std::vector<kernels::ExpertMatrices> matrices;
  for (size_t i = 0; i < pool->slots_.size(); ++i) {
    VramSlot& slot = pool->slots_[i];
    slot.entry = static_cast<uint32_t>(i);
    slot.weights = weights_at(layout, {pool->memory_.get(), i * layout.expert_bytes});
    matrices.push_back(
        {.gate = slot.weights.gate.weight(), .up = slot.weights.up.weight(), .down = slot.weights.down.weight()});
  }
  TRY_ASSIGN(pool->table_, device.make_expert_table(matrices));
  for (size_t i = pool->slots_.size(); i > kVramWindow; --i)
    pool->empty_.push_back(&pool->slots_[i - 1]);
  return pool;
}

VramSlot* VramPool::find(ExpertKey key) {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

VramSlot* VramPool::empty() {
  return empty_.empty() ? nullptr : empty_.back();
}

VramSlot* VramPool::victim(const std::function<bool(ExpertKey)>& may_go) {
  if (by_key_.empty()) return nullptr;
  const auto key = policy_->victim([&](ExpertKey candidate) {
    const auto found = by_key_.find(candidate);
    return found != by_key_.end() && found->second->pins == 0 && may_go(candidate);
  });
  return key ? by_key_.at(*key) : nullptr;
}

VramSlot& VramPool::window() {
  return slots_[turn_++ % kVramWindow];
}

void VramPool::keep(VramSlot& slot, ExpertKey key) {
  DSPACK_CHECK(!empty_.empty() && &slot == empty_.back() && !slot.is_kept, "a slot that is not the next empty one");
  empty_.pop_back();
  slot.is_kept = true;
  slot.uses = 0;
  slot.key = key;
  by_key_.emplace(key, &slot);
}

void VramPool::drop(VramSlot& slot) {
  DSPACK_CHECK(slot.is_kept && slot.pins == 0, "a slot in use, or of no expert");
  policy_->removed(slot.key);
  by_key_.erase(slot.key);
  slot.is_kept = false;
  slot.is_prefetch = false;
  empty_.push_back(&slot);
}

}  // namespace dspack::runtime
