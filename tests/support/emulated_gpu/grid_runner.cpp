#include "tests/support/emulated_gpu/grid_runner.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "format/base/check.h"

namespace dspack::gpu {
namespace {

constexpr uint8_t kPoison = 0xff;            // NaN in every type that kernels read
constexpr size_t kShuffledBlocks = 1 << 16;  // of larger grids only the beginning is random
constexpr uint64_t kSharedAlignment = 128;
constexpr size_t kMaxResident = 4;

}  // namespace

void GridRunner::prepare(const LaunchShape& shape, const std::function<void()>& thread, bool overlaps) {
  overlaps_ = overlaps;
  shape_ = &shape;
  thread_ = &thread;
  blocks_ = uint64_t{shape.grid_x} * shape.grid_y * shape.grid_z;
  order_.resize(std::min<uint64_t>(blocks_, kShuffledBlocks));
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::shuffle(order_, random_);
  next_ = 0;
  do_meet_ = false;
  most_resident_ = 1 + random_() % kMaxResident;
  for (const auto& resident : residents_)
    resident->shared.reset();  // it may be of another size
}

void GridRunner::begin(const LaunchShape& shape, const std::function<void()>& thread) {
  prepare(shape, thread, true);
  has_begun_ = true;
  is_previous_done_ = 0;
  start_blocks(most_resident_);
  for (const auto& resident : residents_) {
    current_ = &resident->runner;
    while (resident->is_taken && current_->is_ready())
      current_->step();
    DSPACK_CHECK(!resident->is_taken || !current_->is_done(), "a block ends before the launch before has");
  }
}

void GridRunner::run(const LaunchShape& shape, const std::function<void()>& thread, bool overlaps) {
  if (!has_begun_) prepare(shape, thread, overlaps);
  has_begun_ = false;
  is_previous_done_ = 1;
  const auto start_more = [&] { start_blocks(do_meet_ ? most_resident_ : 1); };
  for (start_more(); std::ranges::any_of(residents_, &Resident::is_taken); start_more()) {
    Resident& resident = pick();
    current_ = &resident.runner;
    do
      current_->step();
    while (!do_meet_ && current_->is_ready());
    resident.is_taken = !current_->is_done();
  }
}

void GridRunner::meet() {
  do_meet_ = true;
  for (const auto& resident : residents_)
    resident->runner.meet_others();
}

void GridRunner::griddepcontrol_wait(const std::source_location& at) {
  current_->griddepcontrol_wait(&is_previous_done_, at);
}

void GridRunner::start_blocks(size_t most) {
  while (residents_.size() < most)
    residents_.push_back(std::make_unique<Resident>(random_()));
  for (size_t i = 0; i < most && next_ < blocks_; ++i) {
    if (residents_[i]->is_taken) continue;
    start(*residents_[i], next_ < order_.size() ? order_[next_] : next_);
    ++next_;
  }
}

void GridRunner::start(Resident& resident, uint64_t block) {
  if (shape_->shared_bytes > 0 && !resident.shared) {
    // As long as was asked for, so that the address sanitizer sees the end.
    void* memory = nullptr;
    DSPACK_CHECK(posix_memalign(&memory, kSharedAlignment, shape_->shared_bytes) == 0, "no shared memory");
    resident.shared.reset(static_cast<unsigned char*>(memory));
  }
  if (resident.shared) std::memset(resident.shared.get(), kPoison, shape_->shared_bytes);
  ThreadPlace place{.thread = 0, .threads = shape_->threads, .block = {}, .grid = {}, .shared = resident.shared.get()};
  place.grid[0] = shape_->grid_x;
  place.grid[1] = shape_->grid_y;
  place.grid[2] = shape_->grid_z;
  place.block[0] = static_cast<unsigned>(block % shape_->grid_x);
  place.block[1] = static_cast<unsigned>(block / shape_->grid_x % shape_->grid_y);
  place.block[2] = static_cast<unsigned>(block / shape_->grid_x / shape_->grid_y);
  resident.runner.start(place, *thread_, overlaps_);
  if (do_meet_) resident.runner.meet_others();
  resident.is_taken = true;
}

/// A resident block that can go on.
GridRunner::Resident& GridRunner::pick() {
  const size_t first = random_() % residents_.size();
  Resident* stuck = nullptr;
  for (size_t i = 0; i < residents_.size(); ++i) {
    Resident& resident = *residents_[(first + i) % residents_.size()];
    if (!resident.is_taken) continue;
    if (resident.runner.is_ready()) return resident;
    stuck = &resident;
  }
  DSPACK_CHECK(stuck == nullptr, stuck->runner.what_is_missing());
  return *stuck;
}

}  // namespace dspack::gpu
