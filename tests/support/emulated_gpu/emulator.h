// A GPU that the test suite plays on the CPU: kernels/cuda compiled as C++ against the dspack_gpu.h beside this file.
// It is not a model of speed; it is stricter than hardware, so that mistakes show:
//   * Threads of a block take turns in random order, from one barrier to the next: what a missing barrier would let
//     race comes out differently from seed to seed. Blocks run in random order, too, and those that exchange counts run
//     beside each other, one to four at once; a count that no running block can bring ends the process.
//   * A barrier that some threads do not reach, or that threads reach at two places of the source, ends the process; so
//     do shuffles without all 32 lanes, unaligned vector loads, launches beyond the limits.
//   * Device and shared memory is filled with NaN patterns; under the address sanitizer every buffer has red zones,
//     unless there are several devices.
//   * What a device's work does with memory of another device ends the process.
//   * Asynchronous copies arrive as early or as late as they may.
//   * A stream does nothing until it is synchronised (or memory is released, or an event is asked for): host memory
//   that
//     was borrowed for less shows, so does a result that is used before it is there. Streams run beside each other in
//     random order (stream_order.h): what lacks an event between them shows.
// Threads: one launch at a time runs; streams as in runtime.h. Lifetime: settings are the process's. Errors: as in
// runtime.h, and DSPACK_CHECK for what kernels do wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>

#include "kernels/cuda/hardware/runtime.h"

namespace dspack::gpu {

struct EmulatorSettings {
  uint64_t seed = 0;                   // of the order of blocks, threads and copies
  unsigned devices = 1;                // GPUs that are there, all alike; of several, none addresses another's memory
  uint64_t memory_bytes = 4ULL << 30;  // of each
  uint64_t shared_bytes_per_block = 227 << 10;
  uint64_t pinned_bytes = UINT64_MAX;  // of the host's memory that may be pinned
  unsigned major = 9, minor = 0;
  bool is_there = true;  // false: open_device finds none
  bool has_code = true;  // false: the library was built for other GPUs, and the first launch fails
  // A card that others fill up meanwhile. Launches count from here on, as they are asked for; 0: never.
  uint64_t memory_lost_at = 0;              // from this launch on others have taken memory:
  uint64_t memory_lost_bytes = UINT64_MAX;  // so much, or all that is left
  uint64_t launch_refused = 0;              // this launch is
};
/// Also forgets a failure. In a process of its own the library reads DSPACK_EMULATED_GPU, "no_code",
/// "memory_lost_at=N", "launch_refused=N", "pinned_bytes=N", "devices=N" or "memory_bytes=N", or several of them with
/// commas between.
void configure_emulator(const EmulatorSettings& settings);

struct EmulatorCounts {
  uint64_t launches = 0;  // also those that a graph runs
  uint64_t graph_runs = 0;
  uint64_t allocated_bytes = 0;  // now, of all devices
  uint64_t most_allocated_bytes = 0;
};
[[nodiscard]] EmulatorCounts emulator_counts();

/// A kernel with its arguments, for every thread of every block.
struct EmulatedLaunch {
  LaunchShape shape;
  std::function<void()> thread;
  bool overlaps = false;  // with the launch before it: it begins while that one runs, up to gpu::griddepcontrol_wait
};
/// Puts it behind what the stream holds, or into its recording. If the stream's next work is a launch that overlaps,
/// some blocks of that begin before this one does.
void enqueue(Stream& stream, EmulatedLaunch launch);
/// Runs `thread` for every thread of every block, now.
void run_grid(const LaunchShape& shape, const std::function<void()>& thread);
[[nodiscard]] bool emulator_has_code();
/// The one that was opened last.
[[nodiscard]] unsigned opened_device();
/// Counts a launch. False: the GPU has failed, or fails with this one.
[[nodiscard]] bool may_launch();
/// Puts work behind what the stream with this Stream::handle() holds, or into its recording.
void enqueue_on(void* handle, std::function<void()> work);
/// Whether so many bytes are all of one allocation.
[[nodiscard]] bool is_device_memory(const void* from, uint64_t bytes);

// What a running thread may ask for
// -------------------------------------------------------------------------------------

struct ThreadPlace {
  unsigned thread = 0, threads = 0;
  unsigned block[3] = {}, grid[3] = {};
  unsigned char* shared = nullptr;
};
[[nodiscard]] const ThreadPlace& thread_place();
void reach_block_barrier(const std::source_location& at);
void wait_for_previous_at(const std::source_location& at);

inline constexpr unsigned kExchangeWords = 8;
using ExchangeWords = uint32_t[kExchangeWords];
/// Gives `mine` to the other lanes of the warp, waits until all have given theirs, and returns all 32.
const ExchangeWords* exchange_in_warp(const ExchangeWords& mine, const std::source_location& at);

void start_copy(void* shared, const void* global, bool valid);
void end_copy_group();
void wait_for_copies(unsigned pending_groups);

uint32_t add_to_count(uint32_t* counter);
void wait_for_count_at(const uint32_t* counter, uint32_t count, const std::source_location& at);

}  // namespace dspack::gpu
