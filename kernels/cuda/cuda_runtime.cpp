#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "format/base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/runtime.h"

namespace dspack::gpu {
namespace {

// The device of this process; each thread has to be told before it allocates or makes streams.
std::atomic<int> device_in_use{0};

std::string words(cudaError_t status) {
  return std::string(cudaGetErrorString(status)) + " (" + cudaGetErrorName(status) + ")";
}

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraph_t recorded) {
    check(cudaGraphInstantiate(&ready_, recorded, 0));
    check(cudaGraphDestroy(recorded));
  }
  ~CudaGraph() override { cudaGraphExecDestroy(ready_); }
  [[nodiscard]] cudaGraphExec_t ready() const { return ready_; }

 private:
  cudaGraphExec_t ready_ = nullptr;
};

// Events that nobody uses any more, for those who want one next: a pass marks hundreds of points, and making an event
// takes longer than recording it. Never destroyed: at the end of the process the driver may have gone first.
class EventPool {
 public:
  [[nodiscard]] cudaEvent_t take() {
    const std::lock_guard lock(mutex_);
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      check(cudaEventCreate(&event));
    } else {
      event = free_.back();
      free_.pop_back();
    }
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;  // guarded by mutex_
};

EventPool& event_pool() {
  static auto& pool = *new EventPool;
  return pool;
}

class CudaEvent final : public Event {
 public:
  CudaEvent() : event_(event_pool().take()) {}
  ~CudaEvent() override { event_pool().give_back(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  [[nodiscard]] bool is_reached() override {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status);
    return true;
  }
  void wait() override { check(cudaEventSynchronize(event_)); }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_));
    return milliseconds / 1e3;
  }
  [[nodiscard]] cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  CudaStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~CudaStream() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  void* handle() override { return stream_; }
  void copy_to_device(void* to, const void* from, uint64_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void copy_to_host(void* to, const void* from, uint64_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  }
  void copy_on_device(void* to, const void* from, uint64_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  void fill(void* to, uint8_t value, uint64_t bytes) override { check(cudaMemsetAsync(to, value, bytes, stream_)); }
  void synchronize() override { check(cudaStreamSynchronize(stream_)); }
  std::shared_ptr<Event> mark() override {
    auto event = std::make_shared<CudaEvent>();
    check(cudaEventRecord(event->event(), stream_));
    return event;
  }
  void wait(const Event& event) override {
    check(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).event(), 0));
  }
  void begin_recording() override { check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed)); }
  std::unique_ptr<Graph> end_recording() override {
    cudaGraph_t recorded = nullptr;
    check(cudaStreamEndCapture(stream_, &recorded));
    return std::make_unique<CudaGraph>(recorded);
  }
  void run(Graph& graph) override { check(cudaGraphLaunch(static_cast<CudaGraph&>(graph).ready(), stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Why the driver shows no GPU, for who has to do something about it.
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
                                    ", the library was built with " + version(CUDART_VERSION)};
}

void use_device() {
  check(cudaSetDevice(device_in_use));
}

}  // namespace

void check(cudaError_t status, const char* file, int line) {
  DSPACK_CHECK(status == cudaSuccess, std::string(file) + ":" + std::to_string(line) + ": CUDA: " + words(status));
}

Result<Properties> open_device(unsigned index) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    cudaGetLastError();  // it is told, and nobody else shall meet it
    return no_gpu(status);
  }
  if (index >= static_cast<unsigned>(count)) {
    return Error{ErrorKind::not_found,
                 "there is no GPU " + std::to_string(index) + ": the driver shows " + std::to_string(count)};
  }
  const int device = static_cast<int>(index);
  if (const cudaError_t status = cudaSetDevice(device); status != cudaSuccess) {
    cudaGetLastError();
    return Error{ErrorKind::not_found, "GPU " + std::to_string(index) + " cannot be used: " + words(status)};
  }
  device_in_use = device;
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, device));
  return Properties{.name = properties.name,
                    .major = static_cast<unsigned>(properties.major),
                    .minor = static_cast<unsigned>(properties.minor),
                    .multiprocessors = static_cast<unsigned>(properties.multiProcessorCount),
                    .shared_bytes_per_block = properties.sharedMemPerBlockOptin,
                    .total_bytes = properties.totalGlobalMem};
}

uint64_t free_bytes() {
  use_device();
  size_t free = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&free, &total));
  return free;
}

Result<void*> allocate(uint64_t bytes) {
  use_device();
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes == 0 ? 1 : bytes);
  if (status == cudaSuccess) return memory;
  cudaGetLastError();
  const Error refusal{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) + " bytes of GPU memory"};
  if (status == cudaErrorMemoryAllocation) return refusal;
  check(status);
  return refusal;
}

void release(void* memory) {
  // At the end of the process the driver may have gone first.
  if (const cudaError_t status = cudaFree(memory); status != cudaErrorCudartUnloading) check(status);
}

Result<void*> allocate_pinned(uint64_t bytes) {
  use_device();
  void* memory = nullptr;
  if (cudaMallocHost(&memory, bytes == 0 ? 1 : bytes) == cudaSuccess) return memory;
  cudaGetLastError();
  return Error{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) + " bytes of pinned memory"};
}

void release_pinned(void* memory) {
  if (const cudaError_t status = cudaFreeHost(memory); status != cudaErrorCudartUnloading) check(status);
}

std::unique_ptr<Stream> make_stream() {
  use_device();
  return std::make_unique<CudaStream>();
}

}  // namespace dspack::gpu
