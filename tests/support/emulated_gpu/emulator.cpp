#include "tests/support/emulated_gpu/emulator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <vector>

#include "format/base/check.h"
#include "tests/support/emulated_gpu/emulated_memory.h"
#include "tests/support/emulated_gpu/grid_runner.h"
#include "tests/support/stream_order.h"

namespace dspack::gpu {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxBlocksYz = 65'535;

class EmulatedStream;

/// A launch in a stream or a recording, and the one that follows it without anything between.
struct Launched {
  EmulatedLaunch launch;
  std::weak_ptr<Launched> next;
  GridRunner* runner = nullptr;  // where it has begun
};

EmulatorSettings settings_of_environment() {
  EmulatorSettings settings;
  const char* text = std::getenv("DSPACK_EMULATED_GPU");
  std::istringstream all(text == nullptr ? "" : text);
  for (std::string asked; std::getline(all, asked, ',');) {
    const auto number = [&] { return std::stoull(asked.substr(asked.find('=') + 1)); };
    if (asked == "no_code") {
      settings.has_code = false;
    } else if (asked.starts_with("memory_lost_at=")) {
      settings.memory_lost_at = number();
    } else if (asked.starts_with("launch_refused=")) {
      settings.launch_refused = number();
    } else if (asked.starts_with("pinned_bytes=")) {
      settings.pinned_bytes = number();
    } else if (asked.starts_with("devices=")) {
      settings.devices = static_cast<unsigned>(number());
    } else if (asked.starts_with("memory_bytes=")) {
      settings.memory_bytes = number();
    } else {
      DSPACK_CHECK(false, "DSPACK_EMULATED_GPU: " + asked);
    }
  }
  return settings;
}

struct State {
  State() { memory.keep_apart(settings.devices > 1); }

  std::recursive_mutex mutex;
  EmulatorSettings settings = settings_of_environment();
  EmulatorCounts counts;
  uint64_t asked_launches = 0;  // since the settings were made
  std::vector<std::unique_ptr<GridRunner>> runners;
  std::vector<GridRunner*> idle_runners;
  EmulatedMemory memory;
  unsigned opened = 0;  // the device that was opened last
  std::map<void*, uint64_t> pinned;
  std::set<EmulatedStream*> streams;
  test::StreamOrder order{0};
};

State& state() {
  static State the_state;
  return the_state;
}

/// Of the thread that runs; guarded by State::mutex. Every step of a thread asks for it, so that it is no part of what
/// is made at first use.
constinit GridRunner* g_runner = nullptr;

/// With the lock held.
uint64_t pinned_bytes() {
  uint64_t bytes = 0;
  for (const auto& [memory, size] : state().pinned)
    bytes += size;
  return bytes;
}

GridRunner* take_runner() {
  State& all = state();
  if (all.idle_runners.empty()) {
    all.runners.push_back(std::make_unique<GridRunner>(all.settings.seed + all.runners.size()));
    all.idle_runners.push_back(all.runners.back().get());
  }
  GridRunner* runner = all.idle_runners.back();
  all.idle_runners.pop_back();
  return runner;
}

/// While it exists, threads of this runner run.
class Running {
 public:
  explicit Running(GridRunner* runner) : before_(g_runner) { g_runner = runner; }
  ~Running() { g_runner = before_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  GridRunner* before_;
};

class EmulatedGraph final : public Graph {
 public:
  std::vector<std::function<void()>> work;
};

class EmulatedEvent final : public Event {
 public:
  EmulatedEvent(unsigned device, std::shared_ptr<test::StreamOrder::Event> event)
      : device_(device), event_(std::move(event)) {}
  [[nodiscard]] bool is_reached() override {
    const std::lock_guard lock(state().mutex);
    if (!event_->is_reached) state().order.run_some();
    return event_->is_reached;
  }
  void wait() override {
    const std::lock_guard lock(state().mutex);
    state().order.run_until(*event_);
  }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    DSPACK_CHECK(static_cast<const EmulatedEvent&>(earlier).device_ == device_, "times of two devices");
    const auto& other = *static_cast<const EmulatedEvent&>(earlier).event_;
    DSPACK_CHECK(event_->is_reached && other.is_reached, "the time of an event that is not reached");
    return std::chrono::duration<double>(event_->when - other.when).count();
  }
  [[nodiscard]] const std::shared_ptr<test::StreamOrder::Event>& event() const { return event_; }

 private:
  unsigned device_;
  std::shared_ptr<test::StreamOrder::Event> event_;
};

class EmulatedStream final : public Stream {
 public:
  explicit EmulatedStream(unsigned device) : device_(device) {
    const std::lock_guard lock(state().mutex);
    state().streams.insert(this);
    id_ = state().order.add_stream();
  }
  ~EmulatedStream() override {
    synchronize();
    const std::lock_guard lock(state().mutex);
    state().streams.erase(this);
    state().order.remove_stream(id_);
  }
  void* handle() override { return this; }
  [[nodiscard]] unsigned device() const override { return device_; }
  [[nodiscard]] bool can_overlap_launches() const override { return true; }
  void copy_to_device(void* to, const void* from, uint64_t bytes) override {
    DSPACK_CHECK(recording_ == nullptr, "host memory cannot be recorded");
    copy(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, uint64_t bytes) override {
    DSPACK_CHECK(recording_ == nullptr, "host memory cannot be recorded");
    copy(to, from, bytes);
  }
  void copy_on_device(void* to, const void* from, uint64_t bytes) override { copy(to, from, bytes); }
  void fill(void* to, uint8_t value, uint64_t bytes) override {
    check_is_mine(to);
    add([=] { std::memset(to, value, bytes); });
  }
  void synchronize() override {
    DSPACK_CHECK(recording_ == nullptr, "a stream that records cannot be synchronised");
    const std::lock_guard lock(state().mutex);
    state().order.run_all(id_);
  }
  std::shared_ptr<Event> mark() override {
    DSPACK_CHECK(recording_ == nullptr, "an event of a recording");
    const std::lock_guard lock(state().mutex);
    return std::make_shared<EmulatedEvent>(device_, state().order.mark(id_));
  }
  void wait(const Event& event) override {
    DSPACK_CHECK(recording_ == nullptr, "a recording that waits for an event");
    const std::lock_guard lock(state().mutex);
    state().order.wait(id_, static_cast<const EmulatedEvent&>(event).event());
  }
  void begin_recording() override {
    DSPACK_CHECK(recording_ == nullptr, "the stream records already");
    last_.reset();
    recording_ = std::make_unique<EmulatedGraph>();
  }
  std::unique_ptr<Graph> end_recording() override {
    last_.reset();
    return std::move(recording_);
  }
  void run(Graph& graph) override {
    DSPACK_CHECK(recording_ == nullptr, "a graph within a graph");
    auto* mine = &static_cast<EmulatedGraph&>(graph);
    add([mine] {
      ++state().counts.graph_runs;
      for (const auto& item : mine->work)
        item();
    });
  }
  void add(std::function<void()> work) {
    if (has_failed()) return;
    last_.reset();
    if (recording_) return recording_->work.push_back(std::move(work));
    const std::lock_guard lock(state().mutex);
    state().order.add(id_, [device = device_, work = std::move(work)] {
      state().memory.show(device);
      work();
    });
  }
  void add(EmulatedLaunch launch);

 private:
  /// Or the host's.
  void check_is_mine(const void* place) const {
    const std::lock_guard lock(state().mutex);
    const auto owner = state().memory.owner(place);
    DSPACK_CHECK(!owner || *owner == device_, "a stream of one GPU with memory of another");
  }
  void copy(void* to, const void* from, uint64_t bytes) {
    check_is_mine(to);
    check_is_mine(from);
    add([=] {
      if (bytes != 0) std::memmove(to, from, bytes);
    });
  }
  unsigned device_;
  test::StreamOrder::StreamId id_ = 0;
  std::weak_ptr<Launched> last_;  // if nothing has been added since
  std::unique_ptr<EmulatedGraph> recording_;
};

void check_shape(const LaunchShape& shape) {
  DSPACK_CHECK(shape.grid_x > 0 && shape.grid_y > 0 && shape.grid_z > 0, "a grid without blocks");
  DSPACK_CHECK(shape.grid_x < 1U << 31U && shape.grid_y <= kMaxBlocksYz && shape.grid_z <= kMaxBlocksYz,
               "more blocks than a grid may have");
  DSPACK_CHECK(shape.threads > 0 && shape.threads <= kMaxThreads && shape.threads % 32 == 0,
               "threads of a block: whole warps, at most 1,024");
  DSPACK_CHECK(shape.shared_bytes <= state().settings.shared_bytes_per_block, "more shared memory than there is");
}

void run_launched(Launched& mine) {
  const std::lock_guard lock(state().mutex);
  check_shape(mine.launch.shape);
  ++state().counts.launches;
  const auto next = mine.next.lock();
  if (next != nullptr && next->launch.overlaps && next->runner == nullptr) {
    check_shape(next->launch.shape);
    next->runner = take_runner();
    const Running running(next->runner);
    next->runner->begin(next->launch.shape, next->launch.thread);
  }
  GridRunner* runner = mine.runner != nullptr ? mine.runner : take_runner();
  mine.runner = nullptr;
  {
    const Running running(runner);
    runner->run(mine.launch.shape, mine.launch.thread, mine.launch.overlaps);
  }
  state().idle_runners.push_back(runner);
}

void EmulatedStream::add(EmulatedLaunch launch) {
  auto mine = std::make_shared<Launched>();
  mine->launch = std::move(launch);
  const auto before = last_.lock();
  add([mine] { run_launched(*mine); });
  if (before != nullptr) before->next = mine;
  last_ = mine;
}

}  // namespace

void configure_emulator(const EmulatorSettings& settings) {
  const std::lock_guard lock(state().mutex);
  state().settings = settings;
  state().asked_launches = 0;
  forget_failure();
  state().runners.clear();
  state().idle_runners.clear();
  state().order.seed(settings.seed);
  state().memory.keep_apart(settings.devices > 1);
}

EmulatorCounts emulator_counts() {
  const std::lock_guard lock(state().mutex);
  EmulatorCounts counts = state().counts;
  counts.allocated_bytes = state().memory.allocated_bytes();
  return counts;
}

void run_grid(const LaunchShape& shape, const std::function<void()>& thread) {
  const std::lock_guard lock(state().mutex);
  Launched launched;
  launched.launch = {.shape = shape, .thread = thread};
  run_launched(launched);
}

bool emulator_has_code() {
  if (free_bytes(state().opened) == 0)
    fail({ErrorKind::budget, std::string(kNoMemoryLeft) + ": no memory for code (emulated)"});
  return state().settings.has_code;
}

unsigned opened_device() {
  return state().opened;
}

bool may_launch() {
  if (has_failed()) return false;
  const std::lock_guard lock(state().mutex);
  if (!state().settings.has_code)
    fail({ErrorKind::io, "the GPU has failed: no kernel image is available for execution on the device (emulated)"});
  if (++state().asked_launches == state().settings.launch_refused)
    fail({ErrorKind::budget, std::string(kNoMemoryLeft) + ": launch refused (emulated)"});
  return !has_failed();
}

void enqueue(Stream& stream, EmulatedLaunch launch) {
  static_cast<EmulatedStream&>(stream).add(std::move(launch));
}

void enqueue_on(void* handle, std::function<void()> work) {
  static_cast<EmulatedStream*>(handle)->add(std::move(work));
}

bool is_device_memory(const void* from, uint64_t bytes) {
  const std::lock_guard lock(state().mutex);
  return state().memory.holds(from, bytes);
}

const ThreadPlace& thread_place() {
  return g_runner->current().current_place();
}
void wait_for_previous_at(const std::source_location& at) {
  g_runner->griddepcontrol_wait(at);
}
void reach_block_barrier(const std::source_location& at) {
  g_runner->current().block_barrier(at);
}
const ExchangeWords* exchange_in_warp(const ExchangeWords& mine, const std::source_location& at) {
  return g_runner->current().exchange(mine, at);
}
void start_copy(void* shared, const void* global, bool valid) {
  g_runner->current().start_copy(shared, global, valid);
}
void end_copy_group() {
  g_runner->current().end_copy_group();
}
void wait_for_copies(unsigned pending_groups) {
  g_runner->current().wait_for_copies(pending_groups);
}
uint32_t add_to_count(uint32_t* counter) {
  g_runner->meet();
  const uint32_t before = (*counter)++;
  g_runner->current().take_turns();
  return before;
}
void wait_for_count_at(const uint32_t* counter, uint32_t count, const std::source_location& at) {
  g_runner->meet();
  g_runner->current().wait_for_count(counter, count, at);
}

// runtime.h
// --------------------------------------------------------------------------------------------------------------

Result<Properties> open_device(unsigned index) {
  const EmulatorSettings& settings = state().settings;
  if (!settings.is_there || index >= settings.devices) {
    return Error{ErrorKind::not_found, "there is no emulated GPU " + std::to_string(index) + ": there are " +
                                           std::to_string(settings.is_there ? settings.devices : 0)};
  }
  state().opened = index;
  return Properties{.index = index,
                    .name = "emulated GPU",
                    .major = settings.major,
                    .minor = settings.minor,
                    .multiprocessors = 4,
                    .shared_bytes_per_block = settings.shared_bytes_per_block,
                    .total_bytes = settings.memory_bytes};
}

std::string_view architectures() {
  return "90";
}

uint64_t free_bytes(unsigned device) {
  const std::lock_guard lock(state().mutex);
  const EmulatorSettings& settings = state().settings;
  const uint64_t left = settings.memory_bytes - std::min(settings.memory_bytes, state().memory.allocated_bytes(device));
  const bool is_lost = settings.memory_lost_at != 0 && state().asked_launches >= settings.memory_lost_at;
  return is_lost ? left - std::min(left, settings.memory_lost_bytes) : left;
}

Result<void*> allocate(unsigned device, uint64_t bytes) {
  const std::lock_guard lock(state().mutex);
  void* const memory = bytes > free_bytes(device) ? nullptr : state().memory.allocate(device, bytes);
  if (memory == nullptr)
    return Error{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) + " bytes of GPU memory"};
  EmulatorCounts& counts = state().counts;
  counts.most_allocated_bytes = std::max(counts.most_allocated_bytes, state().memory.allocated_bytes());
  return memory;
}

void release(void* memory) {
  const std::lock_guard lock(state().mutex);
  for (EmulatedStream* stream : state().streams)
    stream->synchronize();
  state().memory.release(memory);
}

Result<void*> allocate_pinned(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  const std::lock_guard lock(state().mutex);
  const uint64_t left = state().settings.pinned_bytes - std::min(state().settings.pinned_bytes, pinned_bytes());
  void* memory = nullptr;
  if (bytes > left || posix_memalign(&memory, kPage, std::max<uint64_t>(bytes, 1)) != 0)
    return refusal_to_pin(bytes, "out of memory (emulated)");
  state().pinned.emplace(memory, bytes);
  return memory;
}

void release_pinned(void* memory) {
  const std::lock_guard lock(state().mutex);
  DSPACK_CHECK(state().pinned.erase(memory) == 1, "memory that was not pinned");
  std::free(memory);  // NOLINT: counterpart of posix_memalign
}

std::unique_ptr<Stream> make_stream(unsigned device) {
  return std::make_unique<EmulatedStream>(device);
}

}  // namespace dspack::gpu
