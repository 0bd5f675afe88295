// The host's side of a GPU: memory, streams, recorded graphs. Free of CUDA's headers, so that the test suite can
// implement it with an emulated GPU; on NVIDIA hardware cuda_runtime.cpp implements it. Both record failures in the
// same way (runtime.cpp). A process may use several GPUs, each by its number in the driver's list; work on one GPU does
// not address memory of another, while pinned host memory is addressable by all.
// Threads: a Stream belongs to one thread at a time, the rest is thread-safe. Lifetime: host memory of a copy is
// borrowed until the stream is synchronised; a graph's buffers must outlive it. Errors: opening and allocating return
// them (not_found, unsupported, budget); any other failure is recorded and makes the device unusable (failure).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::gpu {

/// Blocks and threads of a kernel launch.
struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;  // blocks; y and z at most 65,535
  unsigned threads = 1;                         // per block, at most 1,024
  unsigned shared_bytes = 0;                    // dynamic shared memory per block
};

/// When a launch may begin: after all earlier work in the stream; or, on a card that supports it, while the previous
/// launch still runs, up to the point where its kernel waits for that launch (gpu::griddepcontrol_wait).
enum class Overlap { none, with_previous };

struct Properties {
  unsigned index = 0;  // device number
  std::string name;
  unsigned major = 0, minor = 0;  // compute capability
  unsigned multiprocessors = 0;
  uint64_t shared_bytes_per_block = 0;  // maximum for a launch
  uint64_t total_bytes = 0;
};

/// Initialises a device and makes it the calling thread's current device, to which functions without a device parameter
/// refer. Errors: not_found (no driver, no such device, each with its reason).
[[nodiscard]] Result<Properties> open_device(unsigned index);
/// Compute capabilities that the kernels were compiled for, as configured in the build: "80;89;90".
[[nodiscard]] std::string_view architectures();
/// Memory that is free now; 0 if the device does not report it.
[[nodiscard]] uint64_t free_bytes(unsigned device);

/// Device memory, 256-byte aligned, uninitialised. Errors: budget.
[[nodiscard]] Result<void*> allocate(unsigned device, uint64_t bytes);
void release(void* memory);
/// Pinned host memory, page-aligned: devices copy to and from it directly, and kernels address it at the host's
/// address. Errors: budget.
[[nodiscard]] Result<void*> allocate_pinned(uint64_t bytes);
/// The error of allocate_pinned, with a reason.
[[nodiscard]] Error refusal_to_pin(uint64_t bytes, std::string_view reason);
void release_pinned(void* memory);

/// The first failure that made a device unusable: a lost card, or one without memory for something required. From then
/// on all streams, also of other devices, do nothing: enqueued work is not run, nothing is copied, and every event is
/// reached.
[[nodiscard]] std::optional<Error> failure();
[[nodiscard]] bool has_failed();
inline constexpr char kNoMemoryLeft[] =
    "the GPU has no memory left for what it computes; let the plan use less of it (--vram), or free what others take";
/// Records a failure, unless one is recorded already.
void fail(const Error& error);
/// For tests: simulates a new device in the same process.
void forget_failure();

/// Work recorded on a stream.
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
  /// Both events are reached and of the same device.
  [[nodiscard]] virtual double seconds_since(const Event& earlier) const = 0;
};

/// A queue of work that runs in order.
class Stream {
 public:
  virtual ~Stream() = default;
  /// The cudaStream_t. Makes the stream's device the calling thread's.
  [[nodiscard]] virtual void* handle() = 0;
  [[nodiscard]] virtual unsigned device() const = 0;
  /// Whether launches may overlap (compute capability 9.0 and driver 12.3, or later).
  [[nodiscard]] virtual bool can_overlap_launches() const = 0;
  virtual void copy_to_device(void* to, const void* from, uint64_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, uint64_t bytes) = 0;
  /// The ranges must be identical or disjoint.
  virtual void copy_on_device(void* to, const void* from, uint64_t bytes) = 0;
  virtual void fill(void* to, uint8_t value, uint64_t bytes) = 0;
  virtual void synchronize() = 0;
  /// An event after the stream's work so far.
  [[nodiscard]] virtual std::shared_ptr<Event> mark() = 0;
  /// Later work runs after the event, which may be from another stream, also of another device.
  virtual void wait(const Event& event) = 0;
  /// From here on launches and copies on the device are recorded and not run.
  virtual void begin_recording() = 0;
  [[nodiscard]] virtual std::unique_ptr<Graph> end_recording() = 0;
  virtual void run(Graph& graph) = 0;
};
[[nodiscard]] std::unique_ptr<Stream> make_stream(unsigned device);

}  // namespace dspack::gpu
