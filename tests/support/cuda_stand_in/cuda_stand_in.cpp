#include "tests/support/cuda_stand_in/cuda_stand_in.h"

#include <cstdlib>
#include <cstring>

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's
struct CUstream_st {
  int device;
};
struct CUevent_st {
  int device;
};
struct CUgraph_st {};
struct CUgraphExec_st {
  int device;
};
// NOLINTEND(readability-identifier-naming)

namespace dspack::test {
namespace {

cudaError_t answer(const char* call) {
  const auto& answers = cuda_machine().answers;
  const auto found = answers.find(call);
  return found == answers.end() ? cudaSuccess : found->second;
}

template <class Made>
cudaError_t make(Made*& to, const char* call) {
  const cudaError_t status = answer(call);
  if (status == cudaSuccess) to = new Made{cuda_device_of_thread()};
  return status;
}

cudaError_t allocate(void** memory, size_t bytes, const char* call) {
  const cudaError_t status = answer(call);
  if (status == cudaSuccess) *memory = std::malloc(bytes);  // NOLINT: freed as it was made
  return status;
}

}  // namespace

CudaMachine& cuda_machine() {
  static CudaMachine machine;
  return machine;
}
int& cuda_device_of_thread() {
  thread_local int device = 0;
  return device;
}
cudaError_t launch_on_stand_in(void* stream) {
  const bool is_same = static_cast<CUstream_st*>(stream)->device == cuda_device_of_thread();
  return is_same ? answer("launch") : cudaErrorInvalidResourceHandle;
}

}  // namespace dspack::test

using dspack::test::answer;
using dspack::test::cuda_device_of_thread;
using dspack::test::cuda_machine;

const char* cudaGetErrorString(cudaError_t /*status*/) {
  return "a failure that was asked for";
}
const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaError";
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = cuda_machine().driver;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (cuda_machine().driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
  if (cuda_machine().devices == 0) return cudaErrorNoDevice;
  *count = cuda_machine().devices;
  return answer("cudaGetDeviceCount");
}
cudaError_t cudaSetDevice(int device) {
  const cudaError_t status = answer("cudaSetDevice");
  if (status == cudaSuccess) cuda_device_of_thread() = device;
  return status;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  std::strcpy(properties->name, "stand-in");
  properties->major = 9;
  return answer("cudaGetDeviceProperties");
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  *value = 1;
  return answer("cudaDeviceGetAttribute");
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return answer("cudaMemGetInfo");
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return dspack::test::allocate(memory, bytes, "cudaMalloc");
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);  // NOLINT
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return dspack::test::allocate(memory, bytes, "cudaMallocHost");
}
cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned /*flags*/) {
  const cudaError_t status = answer("cudaHostRegister");
  if (status == cudaSuccess) cuda_machine().registered[memory] = bytes;
  return status;
}
cudaError_t cudaHostUnregister(void* memory) {
  return cuda_machine().registered.erase(memory) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return dspack::test::make(*event, "cudaEventCreate");
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return event->device == stream->device ? answer("cudaEventRecord") : cudaErrorInvalidResourceHandle;
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) {
  return answer("cudaEventQuery");
}
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  return answer("cudaEventSynchronize");
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t /*begin*/, cudaEvent_t /*end*/) {
  *milliseconds = 1;
  return answer("cudaEventElapsedTime");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return dspack::test::make(*stream, "cudaStreamCreateWithFlags");
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return answer("cudaStreamSynchronize");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t /*stream*/, cudaEvent_t /*event*/, unsigned /*flags*/) {
  return answer("cudaStreamWaitEvent");
}
cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, cudaStreamCaptureMode /*mode*/) {
  return answer("cudaStreamBeginCapture");
}
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* graph) {
  const cudaError_t status = answer("cudaStreamEndCapture");
  if (status == cudaSuccess) *graph = new CUgraph_st;
  return status;
}
cudaError_t cudaMemcpyAsync(void* /*to*/, const void* /*from*/, size_t /*bytes*/, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  return answer("cudaMemcpyAsync");
}
cudaError_t cudaMemsetAsync(void* /*to*/, int /*value*/, size_t /*bytes*/, cudaStream_t /*stream*/) {
  return answer("cudaMemsetAsync");
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t /*graph*/, unsigned long long /*flags*/) {
  return dspack::test::make(*ready, "cudaGraphInstantiate");
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  delete ready;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  return ready->device == stream->device ? answer("cudaGraphLaunch") : cudaErrorInvalidResourceHandle;
}
