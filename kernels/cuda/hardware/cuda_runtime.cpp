#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "format/base/check.h"
#include "kernels/cuda/hardware/cuda_check.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::gpu {
namespace {

// CUDA's current device is per thread and must be set before allocating, launching or creating streams.
thread_local int told_device = -1;

cudaError_t tell(unsigned device) {
  if (told_device == static_cast<int>(device)) return cudaSuccess;
  const cudaError_t status = cudaSetDevice(static_cast<int>(device));
  if (status == cudaSuccess) told_device = static_cast<int>(device);
  return status;
}

void use_device(unsigned device) {
  check(tell(device));
}

/// The devices that were opened.
class OpenDevices {
 public:
  struct Facts {
    bool can_overlap = false;          // whether launches may overlap
    bool addresses_registered = true;  // kernels address registered host memory at the host's address
  };
  void add(unsigned device, const Facts& facts) {
    const std::lock_guard lock(mutex_);
    devices_.insert_or_assign(device, facts);
    latest_ = device;
  }
  [[nodiscard]] Facts of(unsigned device) {
    const std::lock_guard lock(mutex_);
    return devices_[device];
  }
  [[nodiscard]] bool all_address_registered() {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(devices_, [](const auto& device) { return device.second.addresses_registered; });
  }
  /// For calls that concern no particular device: a thread without a current device would initialise device 0, which
  /// may be another process's.
  void use_any() {
    if (told_device < 0) use_device(latest_);
  }

 private:
  std::mutex mutex_;
  std::map<unsigned, Facts> devices_;  // guarded by mutex_
  std::atomic<unsigned> latest_{0};
};

OpenDevices& open_devices() {
  static OpenDevices devices;
  return devices;
}

std::string words(cudaError_t status) {
  return std::string(cudaGetErrorString(status)) + " (" + cudaGetErrorName(status) + ")";
}

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraph_t recorded, unsigned device) {
    if (recorded == nullptr) return;  // the recording failed
    use_device(device);
    check(cudaGraphInstantiate(&ready_, recorded, 0));
    check(cudaGraphDestroy(recorded));
  }
  ~CudaGraph() override {
    if (ready_ != nullptr) cudaGraphExecDestroy(ready_);
  }
  [[nodiscard]] cudaGraphExec_t ready() const { return ready_; }

 private:
  cudaGraphExec_t ready_ = nullptr;
};

// Unused events, by device, for reuse: a pass marks hundreds of points, and creating an event takes longer than
// recording it. Never destroyed: at process exit the driver may already be gone.
class EventPool {
 public:
  [[nodiscard]] cudaEvent_t take(unsigned device) {
    const std::lock_guard lock(mutex_);
    cudaEvent_t event = nullptr;
    std::vector<cudaEvent_t>& free = free_[device];
    if (free.empty()) {
      use_device(device);
      check(cudaEventCreate(&event));
    } else {
      event = free.back();
      free.pop_back();
    }
    return event;
  }
  void give_back(unsigned device, cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_[device].push_back(event);
  }

 private:
  std::mutex mutex_;
  std::map<unsigned, std::vector<cudaEvent_t>> free_;  // guarded by mutex_
};

EventPool& event_pool() {
  static auto& pool = *new EventPool;
  return pool;
}

// Large pieces of host memory, in huge pages if the system has them: pinning visits each page, and huge pages are 512
// times fewer.
class RegisteredMemory {
 public:
  /// Null: `bytes` is too small for this, or allocation failed.
  [[nodiscard]] void* make(uint64_t bytes) {
    constexpr uint64_t kHugePageBytes = 2 << 20;
    constexpr uint64_t kLeastBytes = 64 << 20;
    if (bytes < kLeastBytes || !open_devices().all_address_registered()) return nullptr;
    const uint64_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    void* const memory = std::aligned_alloc(kHugePageBytes, whole);
    if (memory == nullptr) return nullptr;
    madvise(memory, whole, MADV_HUGEPAGE);  // the rest stays in small pages
    if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) != cudaSuccess) {
      cudaGetLastError();
      std::free(memory);
      return nullptr;
    }
    const std::lock_guard lock(mutex_);
    places_.insert(memory);
    return memory;
  }
  /// False: not allocated here.
  bool release(void* memory) {
    {
      const std::lock_guard lock(mutex_);
      if (places_.erase(memory) == 0) return false;
    }
    const cudaError_t status = cudaHostUnregister(memory);
    if (status != cudaErrorCudartUnloading && !has_failed()) check(status);
    std::free(memory);
    return true;
  }

 private:
  std::mutex mutex_;
  std::set<void*> places_;  // guarded by mutex_
};

RegisteredMemory& registered_memory() {
  static auto& memory = *new RegisteredMemory;  // never destroyed, like the events
  return memory;
}

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(unsigned device) : device_(device), event_(event_pool().take(device)) {}
  ~CudaEvent() override {
    if (event_ != nullptr) event_pool().give_back(device_, event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  [[nodiscard]] bool is_reached() override {
    if (has_failed()) return true;
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status);
    return true;
  }
  void wait() override {
    if (!has_failed()) check(cudaEventSynchronize(event_));
  }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    float milliseconds = 0;
    if (has_failed()) return 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_));
    return milliseconds / 1e3;
  }
  [[nodiscard]] cudaEvent_t event() const { return event_; }

 private:
  unsigned device_;
  cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(unsigned device) : device_(device), can_overlap_(open_devices().of(device).can_overlap) {
    use_device(device);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  // The caller launches on it, which requires the stream's device to be the thread's current one.
  void* handle() override {
    use_device(device_);
    return stream_;
  }
  [[nodiscard]] unsigned device() const override { return device_; }
  [[nodiscard]] bool can_overlap_launches() const override { return can_overlap_; }
  void copy_to_device(void* to, const void* from, uint64_t bytes) override {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void copy_to_host(void* to, const void* from, uint64_t bytes) override {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  void copy_on_device(void* to, const void* from, uint64_t bytes) override {
    copy(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  void fill(void* to, uint8_t value, uint64_t bytes) override {
    use_device(device_);
    if (!has_failed()) check(cudaMemsetAsync(to, value, bytes, stream_));
  }
  void synchronize() override {
    // Also after a failure: work enqueued before it borrows host memory.
    const cudaError_t status = cudaStreamSynchronize(stream_);
    if (!has_failed()) check(status);
  }
  std::shared_ptr<Event> mark() override {
    auto event = std::make_shared<CudaEvent>(device_);
    if (!has_failed()) check(cudaEventRecord(event->event(), stream_));
    return event;
  }
  void wait(const Event& event) override {
    if (!has_failed()) check(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).event(), 0));
  }
  void begin_recording() override {
    if (has_failed()) return;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    is_recording_ = !has_failed();
  }
  std::unique_ptr<Graph> end_recording() override {
    cudaGraph_t recorded = nullptr;
    if (is_recording_) check(cudaStreamEndCapture(stream_, &recorded));
    is_recording_ = false;
    return std::make_unique<CudaGraph>(recorded, device_);
  }
  void run(Graph& graph) override {
    use_device(device_);
    if (!has_failed()) check(cudaGraphLaunch(static_cast<CudaGraph&>(graph).ready(), stream_));
  }

 private:
  void copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind) {
    if (!has_failed()) check(cudaMemcpyAsync(to, from, bytes, kind, stream_));
  }
  unsigned device_;
  bool can_overlap_;
  cudaStream_t stream_ = nullptr;
  bool is_recording_ = false;
};

// Minimum driver for any CUDA of one major version. Source: "CUDA Compatibility", minor version compatibility.
constexpr int kLeastDriver = CUDART_VERSION >= 13000 ? 580 : 525;

// Explains to the user why the driver shows no GPU.
Error no_gpu(cudaError_t status) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return {ErrorKind::not_found, "this machine has no NVIDIA driver"};
  }
  if (status == cudaErrorNoDevice) return {ErrorKind::not_found, "the NVIDIA driver shows no GPU"};
  if (status != cudaErrorInsufficientDriver) return {ErrorKind::not_found, "no GPU can be used: " + words(status)};
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  return {ErrorKind::not_found, "the NVIDIA driver is too old: it knows CUDA " + version(driver) +
                                    ", the library was built with " + version(CUDART_VERSION) +
                                    ", which takes driver " + std::to_string(kLeastDriver) + " or later"};
}

}  // namespace

void check(cudaError_t status, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // otherwise a later call would report it again
  const std::string_view path = file;
  const std::string what =
      words(status) + ", " + std::string(path.substr(path.find_last_of('/') + 1)) + ":" + std::to_string(line);
  if (status == cudaErrorMemoryAllocation || status == cudaErrorLaunchOutOfResources) {
    fail({ErrorKind::budget, std::string(kNoMemoryLeft) + ": " + what});
  } else {
    fail({ErrorKind::io, "the GPU has failed: " + what});
  }
}

std::string_view architectures() {
  return DSPACK_CUDA_ARCHITECTURES;
}

Result<Properties> open_device(unsigned index) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();  // reported here; clears it for later calls
    return no_gpu(status);
  }
  if (index >= static_cast<unsigned>(count)) {
    return Error{ErrorKind::not_found,
                 "there is no GPU " + std::to_string(index) + ": the driver shows " + std::to_string(count)};
  }
  const int device = static_cast<int>(index);
  if (const cudaError_t status = tell(index); status != cudaSuccess) {
    cudaGetLastError();
    return Error{ErrorKind::not_found, "GPU " + std::to_string(index) + " cannot be used: " + words(status)};
  }
  cudaDeviceProp properties = {};
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess) {
    cudaGetLastError();
    return Error{ErrorKind::not_found, "GPU " + std::to_string(index) + " cannot be used: " + words(status)};
  }
  // Launches that overlap can be recorded with driver 12.3 and later.
  int driver = 0;
  check(cudaDriverGetVersion(&driver));
  int is_addressed_alike = 0;  // kernels address registered memory at the host's address
  const bool is_told =
      cudaDeviceGetAttribute(&is_addressed_alike, cudaDevAttrCanUseHostPointerForRegisteredMem, device) == cudaSuccess;
  open_devices().add(index, {.can_overlap = properties.major >= 9 && driver >= 12'030,
                             .addresses_registered = is_told && is_addressed_alike != 0});
  return Properties{.index = index,
                    .name = properties.name,
                    .major = static_cast<unsigned>(properties.major),
                    .minor = static_cast<unsigned>(properties.minor),
                    .multiprocessors = static_cast<unsigned>(properties.multiProcessorCount),
                    .shared_bytes_per_block = properties.sharedMemPerBlockOptin,
                    .total_bytes = properties.totalGlobalMem};
}

uint64_t free_bytes(unsigned device) {
  use_device(device);
  size_t free = 0;
  size_t total = 0;
  if (!has_failed()) check(cudaMemGetInfo(&free, &total));
  return free;
}

Result<void*> allocate(unsigned device, uint64_t bytes) {
  use_device(device);
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes == 0 ? 1 : bytes);
  if (status == cudaSuccess) return memory;
  cudaGetLastError();
  const Error refusal{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) + " bytes of GPU memory"};
  if (status != cudaErrorMemoryAllocation) check(status);
  return refusal;
}

void release(void* memory) {
  // At process exit the driver may already be gone.
  if (const cudaError_t status = cudaFree(memory); status != cudaErrorCudartUnloading && !has_failed()) check(status);
}

Result<void*> allocate_pinned(uint64_t bytes) {
  open_devices().use_any();
  if (void* const memory = registered_memory().make(bytes); memory != nullptr) return memory;
  void* memory = nullptr;
  const cudaError_t status = cudaMallocHost(&memory, bytes == 0 ? 1 : bytes);
  if (status == cudaSuccess) return memory;
  cudaGetLastError();
  return refusal_to_pin(bytes, words(status));
}

void release_pinned(void* memory) {
  if (registered_memory().release(memory)) return;
  const cudaError_t status = cudaFreeHost(memory);
  if (status != cudaErrorCudartUnloading && !has_failed()) check(status);
}

std::unique_ptr<Stream> make_stream(unsigned device) {
  return std::make_unique<CudaStream>(device);
}

}  // namespace dspack::gpu
