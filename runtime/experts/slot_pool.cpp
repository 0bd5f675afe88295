#include "runtime/experts/slot_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

std::span<std::byte> Slot::bytes() const {
  return kernels::host_bytes(*memory);
}

SlotPool::SlotPool(SlotMemory memory, uint64_t slot_bytes, uint64_t limit, std::unique_ptr<EvictionPolicy> policy)
    : memory_(std::move(memory)), slot_bytes_(slot_bytes), limit_(limit), policy_(std::move(policy)) {
  DSPACK_CHECK(limit > 0, "a pool without slots");
}

Slot* SlotPool::find(ExpertKey key) {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

bool SlotPool::may_go(ExpertKey key) const {
  const auto found = by_key_.find(key);
  return found != by_key_.end() && found->second->pins == 0 && found->second->state == Slot::State::ready;
}

Result<Slot*> SlotPool::take(ExpertKey key, uint64_t number, const std::function<void(const Slot&)>& evicted,
                             const std::function<bool(ExpertKey)>& spared) {
  DSPACK_CHECK(!by_key_.contains(key), "an expert that has a slot");
  if (empty_.empty() && slots_.size() < limit_) {
    auto memory = memory_(slot_bytes_);
    if (!memory) {
      return memory.error().in(
          fmt::format("slot {} of {} for experts (fewer with --ram or --experts)", slots_.size() + 1, limit_));
    }
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->number = number;
    slots_.back()->memory = std::move(*memory);
    empty_.push_back(slots_.back().get());
  }
  if (empty_.empty()) {
    const auto leaves =
        victim([&](ExpertKey candidate) { return may_go(candidate) && (spared == nullptr || !spared(candidate)); });
    if (!leaves) return static_cast<Slot*>(nullptr);
    Slot& leaving = *by_key_.at(*leaves);
    DSPACK_CHECK(may_go(*leaves), "a policy gave up an expert that is in use");
    evicted(leaving);
    clear(leaving);
  }
  Slot* slot = empty_.back();
  empty_.pop_back();
  slot->key = key;
  by_key_.emplace(key, slot);
  return slot;
}

std::optional<ExpertKey> SlotPool::victim(const std::function<bool(ExpertKey)>& may_leave) const {
  const auto spare = std::find_if(spares_.rbegin(), spares_.rend(), may_leave);
  return spare != spares_.rend() ? *spare : policy_->victim(may_leave);
}

void SlotPool::set_spare(Slot& slot, bool is_spare) {
  std::erase(spares_, slot.key);
  if (is_spare) spares_.push_back(slot.key);
}

void SlotPool::clear(Slot& slot) {
  DSPACK_CHECK(slot.pins == 0, "a slot in use");
  policy_->removed(slot.key);
  std::erase(spares_, slot.key);
  by_key_.erase(slot.key);
  slot.state = Slot::State::empty;
  slot.error.reset();
  slot.urgency = Urgency::demand;
  slot.is_prefetch = false;
  slot.may_fail = false;
  slot.is_second_try = false;
  empty_.push_back(&slot);
}

}  // namespace dspack::runtime
