#include "tests/support/emulated_gpu/block_runner.h"

#include <cstring>
#include <string>

#include "format/base/check.h"

namespace dspack::gpu {
namespace {

constexpr unsigned kWarp = 32;

std::string words(const std::source_location& at) {
  return std::string(at.file_name()) + ":" + std::to_string(at.line()) + " (" + at.function_name() + ")";
}

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

}  // namespace

void BlockRunner::start(const ThreadPlace& place, const std::function<void()>& body, bool must_wait) {
  must_wait_ = must_wait;
  is_alone_ = true;
  count_ = place.threads;
  waiting_ = 0;
  done_ = 0;
  while (threads_.size() < count_)
    threads_.push_back(std::make_unique<Thread>());
  warps_.resize(count_ / kWarp);
  for (Warp& warp : warps_)
    warp.waiting = 0;
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.place = place;
    thread.place.thread = i;
    thread.waits = Waits::no;
    thread.exchanges = 0;
    thread.has_waited = false;
    thread.copies.clear();
    thread.group_ends.clear();
    thread.carried_out = thread.past_groups = 0;
    thread.fiber.start(body);
    ready_.push_back(&thread);
  }
}

bool BlockRunner::is_ready() {
  std::erase_if(counting_, [&](Thread* thread) {
    if (*thread->counter < thread->wanted) return false;
    thread->waits = Waits::no;
    ready_.push_back(thread);
    return true;
  });
  return !ready_.empty();
}

BlockRunner::Thread* BlockRunner::draw() {
  std::swap(ready_[random_.below(static_cast<uint32_t>(ready_.size()))], ready_.back());
  Thread* thread = ready_.back();
  ready_.pop_back();
  return thread;
}

void BlockRunner::step() {
  current_ = draw();
  current_->fiber.resume();
  if (!current_->fiber.is_done()) return;
  DSPACK_CHECK(!must_wait_ || current_->has_waited, "a thread ends that has not waited for the launch before");
  ++done_;
}

std::string BlockRunner::what_is_missing() const {
  const Thread* first = nullptr;
  for (unsigned i = 0; i < count_; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.waits == Waits::no) continue;
    if (first == nullptr) first = &thread;
    if (thread.waits == Waits::count) first = &thread;  // which is why others wait
  }
  DSPACK_CHECK(first != nullptr, "nobody waits");
  const std::string who = "thread " + std::to_string(first->place.thread) + " waits for ";
  if (first->waits != Waits::count) return who + "others that do not come at " + words(first->at);
  return who + "a count of " + std::to_string(first->wanted) + " that stays " + std::to_string(*first->counter) +
         " at " + words(first->at);
}

void BlockRunner::wait(Waits what, const std::source_location& at) {
  current_->waits = what;
  current_->at = at;
  yield();
}

void BlockRunner::yield() {
  Thread* self = current_;
  if (!Fiber::kSwitchesDirectly || !is_alone_ || !counting_.empty() || ready_.empty()) return self->fiber.yield();
  current_ = draw();
  if (current_ != self) self->fiber.yield_to(current_->fiber);
}

void BlockRunner::block_barrier(const std::source_location& at) {
  ++waiting_;
  if (waiting_ < count_) return wait(Waits::block, at);
  for (unsigned i = 0; i < count_; ++i) {
    const Thread& thread = *threads_[i];
    DSPACK_CHECK(&thread == current_ || same_place(thread.at, at),
                 "threads of a block meet at two barriers: " + words(thread.at) + " and " + words(at));
  }
  waiting_ = 0;
  release_block();
  take_turns();  // whoever came last does not go on first
}

void BlockRunner::take_turns() {
  ready_.push_back(current_);
  yield();
}

void BlockRunner::wait_for_count(const uint32_t* counter, uint32_t count, const std::source_location& at) {
  current_->counter = counter;
  current_->wanted = count;
  counting_.push_back(current_);
  wait(Waits::count, at);
}

void BlockRunner::griddepcontrol_wait(const uint32_t* is_done, const std::source_location& at) {
  current_->has_waited = true;
  if (*is_done == 0) wait_for_count(is_done, 1, at);
}

void BlockRunner::release_block() {
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    if (&thread == current_) continue;
    thread.waits = Waits::no;
    ready_.push_back(&thread);
  }
}

void BlockRunner::release_warp(unsigned warp) {
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    Thread& thread = *threads_[warp * kWarp + lane];
    if (&thread == current_) continue;
    thread.waits = Waits::no;
    ready_.push_back(&thread);
  }
}

const ExchangeWords* BlockRunner::exchange(const ExchangeWords& mine, const std::source_location& at) {
  Thread& self = *current_;
  const unsigned index = self.place.thread / kWarp;
  Warp& warp = warps_[index];
  auto& all = warp.words[self.exchanges++ % 2];
  std::memcpy(all[self.place.thread % kWarp], mine, sizeof(ExchangeWords));
  if (++warp.waiting < kWarp) {
    wait(Waits::warp, at);
    return all;
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const Thread& thread = *threads_[index * kWarp + lane];
    DSPACK_CHECK(&thread == &self || same_place(thread.at, at),
                 "lanes of a warp meet at two places: " + words(thread.at) + " and " + words(at));
  }
  warp.waiting = 0;
  release_warp(index);
  take_turns();
  return all;
}

void BlockRunner::carry_out(const Copy& copy) {
  constexpr size_t kBytes = 16;
  if (copy.valid) {
    std::memcpy(copy.to, copy.from, kBytes);
  } else {
    std::memset(copy.to, 0, kBytes);
  }
}

void BlockRunner::start_copy(void* shared, const void* global, bool valid) {
  const Copy copy{.to = shared, .from = global, .valid = valid};
  if (random_.below(2) == 0) return carry_out(copy);
  current_->copies.push_back(copy);
}

void BlockRunner::end_copy_group() {
  current_->group_ends.push_back(current_->copies.size());
}

void BlockRunner::wait_for_copies(size_t pending_groups) {
  Thread& thread = *current_;
  for (; thread.group_ends.size() - thread.past_groups > pending_groups; ++thread.past_groups) {
    for (; thread.carried_out < thread.group_ends[thread.past_groups]; ++thread.carried_out)
      carry_out(thread.copies[thread.carried_out]);
  }
  constexpr size_t kForgotten = 256;  // copies, at once
  if (thread.carried_out < kForgotten) return;
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<ptrdiff_t>(thread.carried_out));
  thread.group_ends.erase(thread.group_ends.begin(),
                          thread.group_ends.begin() + static_cast<ptrdiff_t>(thread.past_groups));
  for (size_t& end : thread.group_ends)
    end -= thread.carried_out;
  thread.carried_out = thread.past_groups = 0;
}

}  // namespace dspack::gpu
