// Pinned memory of slots: it comes in pieces, ahead of those who take it, and no further.
#include "runtime/experts/pinned_slots.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/deferred_device.h"

namespace dspack::runtime::pinned_slots_test {
namespace {

constexpr uint64_t kSlot = 4096;
constexpr uint64_t kPiece = 4 * kSlot;

std::unique_ptr<kernels::Device> cpu() {
  return std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
}

/// The CPU's device, which remembers what was pinned.
class Counting final : public kernels::Device {
 public:
  [[nodiscard]] std::string_view description() const override { return "counting"; }
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate(uint64_t bytes) override {
    return inner_->allocate(bytes);
  }
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate_host(uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(bytes);
    changed_.notify_all();
    return inner_->allocate(bytes);
  }
  [[nodiscard]] std::unique_ptr<kernels::Queue> make_queue() override { return inner_->make_queue(); }
  [[nodiscard]] bool is_host() const override { return true; }
  [[nodiscard]] kernels::DeviceMemory memory() const override { return {}; }
  [[nodiscard]] Result<std::unique_ptr<kernels::ExpertTable>> make_expert_table(
      std::span<const kernels::ExpertMatrices> experts) override {
    return inner_->make_expert_table(experts);
  }
  [[nodiscard]] uint64_t experts_scratch_bytes(const kernels::ExpertsShape& shape) const override {
    return inner_->experts_scratch_bytes(shape);
  }

  /// All that were pinned so far, once there are `count`.
  std::vector<uint64_t> pieces(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pieces_.size() >= count; });
    return pieces_;
  }

 private:
  std::unique_ptr<kernels::Device> inner_ = cpu();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> pieces_;
};

TEST_CASE("pinned slots: pieces of many slots come before they are taken, two ahead, and no slot too many") {
  Counting device;
  {
    PinnedSlots slots(device, kPiece, 2 * kPiece);
    const std::vector<SlotsWanted> wanted = {{.slot_bytes = kSlot, .slots = 14}};
    slots.expect(wanted);
    CHECK(device.pieces(2) == std::vector<uint64_t>{kPiece, kPiece});
    std::vector<std::unique_ptr<kernels::Buffer>> taken;
    std::set<std::byte*> places;
    for (int i = 0; i < 14; ++i) {
      auto slot = slots.take(kSlot);
      REQUIRE(slot);
      CHECK((*slot)->size_bytes() == kSlot);
      std::ranges::fill((*slot)->host(), std::byte(i));
      places.insert((*slot)->host().data());
      taken.push_back(std::move(*slot));
    }
    CHECK(places.size() == 14);
    for (int i = 0; i < 14; ++i)
      CHECK(std::ranges::count(taken[static_cast<size_t>(i)]->host(), std::byte(i)) == kSlot);
    CHECK(device.pieces(4) == std::vector<uint64_t>{kPiece, kPiece, kPiece, 2 * kSlot});
  }
}

TEST_CASE("pinned slots: nothing is pinned beyond what a run may take ahead") {
  Counting device;
  {
    PinnedSlots slots(device, kPiece, kPiece);
    const std::vector<SlotsWanted> wanted = {{.slot_bytes = kSlot, .slots = 1000}};
    slots.expect(wanted);
    (void)device.pieces(1);
    auto slot = slots.take(kSlot);  // now there is less than a piece ahead
    REQUIRE(slot);
    CHECK(device.pieces(2).size() == 2);
  }
  CHECK(device.pieces(0).size() == 2);
}

TEST_CASE("pinned slots: of several sizes each is there when it is wanted, and a slot outlives what gave it") {
  Counting device;
  std::vector<std::unique_ptr<kernels::Buffer>> taken;
  {
    PinnedSlots slots(device, kPiece, kPiece);
    const std::vector<SlotsWanted> wanted = {
        {.slot_bytes = 8 * kSlot, .slots = 2}, {.slot_bytes = kSlot, .slots = 3}, {.slot_bytes = kSlot, .slots = 2}};
    slots.expect(wanted);
    for (const uint64_t bytes : {kSlot, 8 * kSlot, kSlot, kSlot, kSlot, 8 * kSlot, kSlot}) {
      auto slot = slots.take(bytes);
      REQUIRE(slot);
      CHECK((*slot)->size_bytes() == bytes);
      taken.push_back(std::move(*slot));
    }
  }
  for (const auto& slot : taken)
    std::ranges::fill(slot->host(), std::byte{1});
}

TEST_CASE("pinned slots: what the system allows is used, and the first slot beyond is an error") {
  for (const uint64_t allowed : {0, 1, 5, 6}) {
    CAPTURE(allowed);
    test::DeferredDevice device(cpu());
    device.limit_host(allowed * kSlot + 100);
    PinnedSlots slots(device, kPiece, kPiece);
    const std::vector<SlotsWanted> wanted = {{.slot_bytes = kSlot, .slots = 100}};
    slots.expect(wanted);
    std::vector<std::unique_ptr<kernels::Buffer>> taken;
    for (uint64_t i = 0; i < allowed; ++i) {
      auto slot = slots.take(kSlot);
      REQUIRE(slot);
      taken.push_back(std::move(*slot));
    }
    const auto refused = slots.take(kSlot);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::budget);
    CHECK(refused.error().message.find("pinned") != std::string::npos);
  }
}

}  // namespace
}  // namespace dspack::runtime::pinned_slots_test
