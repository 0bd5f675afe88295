#include "runtime/experts/pinned_slots.h"

#include <algorithm>

#include "format/base/check.h"
#include "format/base/result.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

class PinnedSlots::Slot final : public kernels::Buffer {
 public:
  Slot(SlotLocation place, uint64_t bytes) : place_(std::move(place)), bytes_(bytes) {}
  [[nodiscard]] uint64_t size_bytes() const override { return bytes_; }
  [[nodiscard]] std::span<std::byte> host() override { return place_.piece->host().subspan(place_.offset, bytes_); }

 private:
  SlotLocation place_;
  uint64_t bytes_;
};

void PinnedSlots::expect(std::span<const SlotsWanted> wanted) {
  DSPACK_CHECK(!thread_.joinable(), "slots are expected once");
  for (const SlotsWanted& size : wanted)
    if (size.slots > 0) sizes_.push_back({.slot_bytes = size.slot_bytes, .left = size.slots, .ready = {}, .error = {}});
  thread_ = std::jthread([this](const std::stop_token& stop) { pin(stop); });
}

Result<std::unique_ptr<kernels::Buffer>> PinnedSlots::take(uint64_t slot_bytes) {
  std::unique_lock lock(mutex_);
  // Pools may have equal slot sizes; a slot of either will do.
  const auto has_slots = [&](const Size& size) {
    return size.slot_bytes == slot_bytes && (size.left > 0 || !size.ready.empty());
  };
  const auto size = std::ranges::find_if(sizes_, has_slots);
  DSPACK_CHECK(size != sizes_.end(), "more slots than were expected");
  size->is_awaited = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !size->ready.empty() || size->error; });
  size->is_awaited = false;
  if (size->ready.empty()) return *size->error;
  SlotLocation place = std::move(size->ready.front());
  size->ready.pop_front();
  changed_.notify_all();
  return std::unique_ptr<kernels::Buffer>(std::make_unique<Slot>(std::move(place), slot_bytes));
}

PinnedSlots::Size* PinnedSlots::next() {
  const auto may = [](const Size& size) { return size.left > 0 && !size.error; };
  for (Size& size : sizes_)
    if (may(size) && size.is_awaited && size.ready.empty()) return &size;
  for (Size& size : sizes_)
    if (may(size) && size.ready.size() * size.slot_bytes < ahead_bytes_) return &size;
  return nullptr;
}

void PinnedSlots::pin(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return next() != nullptr; })) {
    if (stop.stop_requested()) return;
    Size& size = *next();
    uint64_t slots = std::clamp<uint64_t>(piece_bytes_ / size.slot_bytes, 1, size.left);
    lock.unlock();
    auto piece = device_.allocate_host(slots * size.slot_bytes);
    while (!piece && slots > 1 && !stop.stop_requested()) {  // memory is nearly full
      slots /= 2;
      piece = device_.allocate_host(slots * size.slot_bytes);
    }
    lock.lock();
    if (piece) {
      const std::shared_ptr<kernels::Buffer> shared = std::move(*piece);
      for (uint64_t i = 0; i < slots; ++i)
        size.ready.push_back({.piece = shared, .offset = i * size.slot_bytes});
      size.left -= slots;
    } else {
      size.error = piece.error();
    }
    changed_.notify_all();
  }
}

}  // namespace dspack::runtime
