// The host's side of a GPU: memory, streams, recorded graphs. Free of CUDA's headers, so that the test suite can put a
// GPU of its own behind it; on NVIDIA hardware cuda_runtime.cpp implements it;
// failures are kept alike on both (runtime.cpp).
// A process may use several GPUs, each by its number among those that the driver shows; memory of one is not addressed
// by work of another, the host's pinned memory by all.
// Threads: a Stream belongs to one thread at a time, the rest is thread-safe. Lifetime: host memory of a copy is
// borrowed until the stream is synchronised; a graph's buffers must outlive it. Errors: opening and allocating return
// them (not_found, unsupported, budget); any other failure is kept, and the device unusable after it (failure).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::gpu {

/// How many threads a kernel runs on.
struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;  // blocks; y and z at most 65,535
  unsigned threads = 1;                         // of a block, at most 1,024
  unsigned shared_bytes = 0;                    // of a block
};

/// When a launch may begin: once what the stream holds has run; or, on a card that can, while the launch before it
/// still runs, up to where its kernel waits for that one (gpu::wait_for_previous).
enum class Overlap { none, with_previous };

struct Properties {
  unsigned index = 0;  // of the device
  std::string name;
  unsigned major = 0, minor = 0;  // compute capability
  unsigned multiprocessors = 0;
  uint64_t shared_bytes_per_block = 0;  // that a launch may ask for
  uint64_t total_bytes = 0;
};

/// Readies a device for use, and makes it the calling thread's, which what names no device is about. Errors: not_found
/// (no driver, no such device, each with its reason).
[[nodiscard]] Result<Properties> open_device(unsigned index);
/// Compute capabilities that the kernels were compiled for, as the build was told: "80;89;90".
[[nodiscard]] std::string_view architectures();
/// Memory that is free now; 0 where the device does not say.
[[nodiscard]] uint64_t free_bytes(unsigned device);

/// Device memory, 256-byte aligned, uninitialised. Errors: budget.
[[nodiscard]] Result<void*> allocate(unsigned device, uint64_t bytes);
void release(void* memory);
/// Host memory that devices copy from and to without a detour and that kernels address as the host does,
/// page-aligned. Errors: budget.
[[nodiscard]] Result<void*> allocate_pinned(uint64_t bytes);
/// What allocate_pinned says, and why.
[[nodiscard]] Error refusal_to_pin(uint64_t bytes, std::string_view reason);
void release_pinned(void* memory);

/// The first failure that made a device unusable: a card that is lost, or without memory for what must be there.
/// From then on streams, also those of other devices, do nothing: what is enqueued is not run, nothing is copied, and
/// every event is reached.
[[nodiscard]] std::optional<Error> failure();
[[nodiscard]] bool has_failed();
inline constexpr char kNoMemoryLeft[] =
    "the GPU has no memory left for what it computes; let the plan use less of it (--vram), or free what others take";
/// Keeps a failure, unless there was one before.
void fail(const Error& error);
/// For tests: a new device in the same process.
void forget_failure();

/// Work that was recorded on a stream.
class Graph {
 public:
  virtual ~Graph() = default;
};

/// A point in a stream's work, with the time at which it was reached.
class Event {
 public:
  virtual ~Event() = default;
  [[nodiscard]] virtual bool is_reached() = 0;
  virtual void wait() = 0;
  /// Both are reached, and of one device.
  [[nodiscard]] virtual double seconds_since(const Event& earlier) const = 0;
};

/// Work in order.
class Stream {
 public:
  virtual ~Stream() = default;
  /// cudaStream_t. The stream's device becomes the calling thread's.
  [[nodiscard]] virtual void* handle() = 0;
  [[nodiscard]] virtual unsigned device() const = 0;
  /// Whether launches may overlap (compute capability 9.0 and later).
  [[nodiscard]] virtual bool can_overlap_launches() const = 0;
  virtual void copy_to_device(void* to, const void* from, uint64_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, uint64_t bytes) = 0;
  /// The places may overlap only if they are the same.
  virtual void copy_on_device(void* to, const void* from, uint64_t bytes) = 0;
  virtual void fill(void* to, uint8_t value, uint64_t bytes) = 0;
  virtual void synchronize() = 0;
  /// What the stream holds so far.
  [[nodiscard]] virtual std::shared_ptr<Event> mark() = 0;
  /// What follows runs after the event, which may be of another stream, also of another device.
  virtual void wait(const Event& event) = 0;
  /// From here on launches and copies on the device are recorded and not run.
  virtual void begin_recording() = 0;
  [[nodiscard]] virtual std::unique_ptr<Graph> end_recording() = 0;
  virtual void run(Graph& graph) = 0;
};
[[nodiscard]] std::unique_ptr<Stream> make_stream(unsigned device);

}  // namespace dspack::gpu
