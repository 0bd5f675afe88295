// What is made of the answers of CUDA's runtime, which a stand-in gives: drivers that are missing or too old, cards
// that are full or lost, and threads that have not been told which device is meant.
#include "kernels/cuda/hardware/runtime.h"

#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/support/cuda_stand_in/cuda_stand_in.h"

namespace dspack::test::runtime_test {
namespace {

// Of all tests, since events are kept for the next who wants one; threads begin with another.
constexpr unsigned kDevice = 1;

/// A machine as a test wants it, for its time.
struct Machine {
  explicit Machine(const CudaMachine& machine = {}) {
    gpu::forget_failure();
    cuda_machine() = machine;
  }
  ~Machine() {
    cuda_machine() = {};
    gpu::forget_failure();
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
};

Error refusal() {
  const auto opened = gpu::open_device(0);
  REQUIRE_FALSE(opened);
  CHECK_FALSE(gpu::has_failed());  // it is told, and a CPU may be used
  return opened.error();
}

std::string failure_of(const char* call, cudaError_t status, auto operation) {
  const Machine machine;
  REQUIRE(gpu::open_device(kDevice));
  const auto stream = gpu::make_stream(kDevice);
  cuda_machine().answers[call] = status;
  operation(*stream);
  const auto failure = gpu::failure();
  REQUIRE(failure.has_value());
  return failure->message;
}

}  // namespace

TEST_CASE("cuda runtime: a machine without a driver, without a GPU, and with a driver that is too old") {
  {
    const Machine machine({.devices = 2, .driver = 0, .answers = {}});
    CHECK(refusal().message == "this machine has no NVIDIA driver");
  }
  {
    const Machine machine({.devices = 0, .answers = {}});
    CHECK(refusal().message == "the NVIDIA driver shows no GPU");
  }
  {
    const Machine machine({.devices = 2, .driver = 12'040, .answers = {}});
    const Error error = refusal();
    CHECK(error.kind == ErrorKind::not_found);
    CHECK(
        error.message ==
        "the NVIDIA driver is too old: it knows CUDA 12.4, the library was built with 13.0, which takes driver 580 or "
        "later");
  }
  const Machine machine;
  const auto opened = gpu::open_device(2);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().message == "there is no GPU 2: the driver shows 2");
}

TEST_CASE("cuda runtime: memory that is not there is an error of the call, and of nothing else") {
  const Machine machine({.answers = {{"cudaMalloc", cudaErrorMemoryAllocation}}});
  REQUIRE(gpu::open_device(kDevice));
  const auto memory = gpu::allocate(kDevice, 1000);
  REQUIRE_FALSE(memory);
  CHECK(memory.error().kind == ErrorKind::budget);
  CHECK(memory.error().message == "cannot allocate 1000 bytes of GPU memory");
  CHECK_FALSE(gpu::has_failed());
}

TEST_CASE("cuda runtime: what a full or lost card answers is kept, with the place and the remedy") {
  char bytes[8] = {};
  const auto copy = [&](gpu::Stream& stream) { stream.copy_to_device(bytes, bytes, 1); };
  CHECK(failure_of("cudaMemcpyAsync", cudaErrorMemoryAllocation, copy).starts_with(gpu::kNoMemoryLeft));
  CHECK(
      failure_of("cudaMemcpyAsync", cudaErrorLaunchFailure, copy)
          .starts_with("the GPU has failed: a failure that was asked for (cudaErrorLaunchFailure), cuda_runtime.cpp:"));
  const auto record = [](gpu::Stream& stream) {
    stream.begin_recording();
    const auto graph = stream.end_recording();
    stream.run(*graph);  // there is none: it is not run
  };
  for (const char* call : {"cudaGraphInstantiate", "cudaStreamBeginCapture", "cudaStreamEndCapture"})
    CHECK(failure_of(call, cudaErrorMemoryAllocation, record).starts_with(gpu::kNoMemoryLeft));
  CHECK(failure_of("cudaStreamSynchronize", cudaErrorLaunchFailure, [](gpu::Stream& stream) {
          stream.synchronize();
        }).starts_with("the GPU has failed"));
  const auto mark = [](gpu::Stream& stream) {
    const auto event = stream.mark();
    event->wait();
    CHECK(event->is_reached());  // nobody waits for ever
  };
  for (const char* call : {"cudaEventRecord", "cudaEventQuery", "cudaEventSynchronize"})
    CHECK(failure_of(call, cudaErrorLaunchFailure, mark).starts_with("the GPU has failed"));
}

TEST_CASE("cuda runtime: a stream that cannot be made is a failure, and does nothing") {
  const Machine machine({.answers = {{"cudaStreamCreateWithFlags", cudaErrorMemoryAllocation}}});
  REQUIRE(gpu::open_device(kDevice));
  const auto stream = gpu::make_stream(kDevice);
  CHECK(gpu::has_failed());
  stream->fill(nullptr, 0, 1);
  stream->synchronize();
}

TEST_CASE("cuda runtime: another thread works on the device in use, too") {
  const Machine machine;
  REQUIRE(gpu::open_device(kDevice));
  const auto stream = gpu::make_stream(kDevice);
  std::jthread([&] {
    CHECK(cuda_device_of_thread() == 0);
    // More than were ever given back, so that events are made here.
    std::vector<std::shared_ptr<gpu::Event>> events;
    for (int i = 0; i < 100; ++i)
      events.push_back(stream->mark());
    CHECK_FALSE(gpu::has_failed());
  }).join();
  std::jthread([&] {
    CHECK(launch_on_stand_in(stream->handle()) == cudaSuccess);
    CHECK(cuda_device_of_thread() == 1);
  }).join();
  std::jthread([&] {
    stream->begin_recording();
    const auto graph = stream->end_recording();
    stream->run(*graph);
    CHECK_FALSE(gpu::has_failed());
  }).join();
  REQUIRE(gpu::open_device(0));
  CHECK(cuda_device_of_thread() == 0);
  const auto other = gpu::make_stream(0);
  CHECK(launch_on_stand_in(other->handle()) == cudaSuccess);
}

TEST_CASE("cuda runtime: two devices at once, from one thread and from others") {
  const Machine machine;
  REQUIRE(gpu::open_device(0));
  REQUIRE(gpu::open_device(1));
  const std::unique_ptr<gpu::Stream> streams[] = {gpu::make_stream(0), gpu::make_stream(1)};
  const auto use_both = [&] {
    for (const unsigned device : {0U, 1U, 1U, 0U}) {
      gpu::Stream& stream = *streams[device];
      CHECK(stream.device() == device);
      CHECK(launch_on_stand_in(stream.handle()) == cudaSuccess);
      CHECK(cuda_device_of_thread() == static_cast<int>(device));
      std::vector<std::shared_ptr<gpu::Event>> events;
      for (int i = 0; i < 3; ++i)
        events.push_back(stream.mark());
      streams[1 - device]->wait(*events.front());
      stream.begin_recording();
      const auto graph = stream.end_recording();
      stream.run(*graph);
      CHECK_FALSE(gpu::has_failed());
      const auto memory = gpu::allocate(1 - device, 100);
      REQUIRE(memory);
      CHECK(cuda_device_of_thread() == static_cast<int>(1 - device));
      gpu::release(*memory);
    }
  };
  use_both();
  std::jthread(use_both).join();
  // What is every device's sets up none that nobody uses.
  REQUIRE(gpu::open_device(1));
  std::jthread([] {
    const auto pinned = gpu::allocate_pinned(4096);
    REQUIRE(pinned);
    CHECK(cuda_device_of_thread() == 1);
    gpu::release_pinned(*pinned);
  }).join();
}

TEST_CASE("cuda runtime: large pieces of the host's memory are registered, others and what that refuses CUDA's own") {
  constexpr uint64_t kLarge = (96ULL << 20) + 4096;
  const Machine machine;
  REQUIRE(gpu::open_device(kDevice));
  const auto& registered = cuda_machine().registered;
  const auto small = gpu::allocate_pinned(4096);
  REQUIRE(small);
  CHECK(registered.empty());
  const auto large = gpu::allocate_pinned(kLarge);
  REQUIRE(large);
  REQUIRE(registered.contains(*large));
  CHECK(registered.at(*large) == kLarge);
  CHECK(reinterpret_cast<uintptr_t>(*large) % (2 << 20) == 0);
  gpu::release_pinned(*large);
  CHECK(registered.empty());
  gpu::release_pinned(*small);

  cuda_machine().answers["cudaHostRegister"] = cudaErrorMemoryAllocation;
  const auto own = gpu::allocate_pinned(kLarge);
  REQUIRE(own);
  CHECK(registered.empty());
  gpu::release_pinned(*own);
  cuda_machine().answers["cudaMallocHost"] = cudaErrorMemoryAllocation;
  const auto refused = gpu::allocate_pinned(kLarge);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(refused.error().message.find("cannot pin 100667392 bytes") != std::string::npos);
  CHECK(refused.error().message.find("ulimit -l") != std::string::npos);
  CHECK_FALSE(gpu::has_failed());
}

}  // namespace dspack::test::runtime_test
