// A card for which there is no code, and one that others fill up while it computes: both end with an error that
// somebody can read, and what is enqueued after a failure is dropped.
#include <doctest/doctest.h>

#include <array>

#include "kernels/cuda/host/cuda_device.h"
#include "kernels/cuda/tokens/elementwise.h"
#include "tests/support/emulated_gpu/emulated_cublaslt.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test::failure_test {
namespace {

using kernels::Rows;
using kernels::Slice;

constexpr uint32_t kCols = 64;

/// A device, a queue and rows of ones, with the failure that the settings ask for.
struct Card {
  explicit Card(const gpu::EmulatorSettings& settings, const kernels::CudaOptions& options = {}) {
    gpu::configure_emulator(settings);
    device = std::move(*kernels::make_cuda_device(options));
    queue = device->make_queue();
    memory = std::move(*device->allocate(8 * kCols * sizeof(float)));
    const std::vector<float> ones(8 * kCols, 1.0F);
    queue->upload({memory.get(), 0}, std::as_bytes(std::span(ones)));
    queue->synchronize();
  }
  ~Card() {
    queue.reset();
    memory.reset();
    gpu::configure_emulator({});  // for who comes next
  }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  [[nodiscard]] Rows rows(uint32_t first, uint32_t count = 1) const {
    return {
        .data = {memory.get(), uint64_t{first} * kCols * sizeof(float)}, .rows = count, .cols = kCols, .stride = kCols};
  }
  void add() const { queue->add(rows(0), rows(1)); }
  /// The first number of the first row; -1: nothing was downloaded.
  [[nodiscard]] float first() const {
    float value = -1;
    queue->download(std::as_writable_bytes(std::span(&value, 1)), rows(0).data);
    queue->synchronize();
    return value;
  }

  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::Queue> queue;
  std::unique_ptr<kernels::Buffer> memory;
};

}  // namespace

TEST_CASE("cuda: a GPU for which the library has no code is refused, with what would help") {
  gpu::EmulatorSettings settings;
  settings.has_code = false;
  settings.minor = 9;
  settings.major = 8;
  gpu::configure_emulator(settings);
  const auto device = kernels::make_cuda_device({});
  gpu::configure_emulator({});
  REQUIRE_FALSE(device);
  CHECK(device.error().kind == ErrorKind::unsupported);
  CHECK(device.error().message ==
        "the CUDA library has no code for emulated GPU (sm_89), only for 90; build it with -D "
        "DSPACK_CUDA_ARCHITECTURES=89 (docs/cuda.md)");
}

TEST_CASE("cuda: a GPU that others have filled is refused for its memory, not for its code") {
  gpu::EmulatorSettings settings;
  settings.memory_bytes = 0;
  gpu::configure_emulator(settings);
  const auto device = kernels::make_cuda_device({});
  gpu::configure_emulator({});
  REQUIRE_FALSE(device);
  CHECK(device.error().kind == ErrorKind::budget);
  CHECK(device.error().message.starts_with(gpu::kNoMemoryLeft));
}

TEST_CASE("cuda: on a GPU without code the first launch would fail") {
  gpu::EmulatorSettings settings;
  settings.has_code = false;
  gpu::configure_emulator(settings);
  const auto stream = gpu::make_stream(0);
  CHECK_FALSE(gpu::has_failed());
  kernels::cuda::run_add(*stream, {.to = {}, .from = {}, .rows = 1, .cols = 1});
  CHECK(gpu::has_failed());
  stream->synchronize();  // nothing runs, on no memory
  gpu::configure_emulator({});
}

TEST_CASE("cuda: a launch that the card refuses is a failure, and nothing runs after it") {
  gpu::EmulatorSettings settings;
  settings.launch_refused = 2;
  const Card card(settings);
  card.add();
  REQUIRE(card.queue->finish());
  CHECK(card.first() == 2);
  const auto step = card.queue->record([&] { card.add(); });  // the second launch
  const auto failed = card.queue->finish();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().kind == ErrorKind::budget);
  CHECK(failed.error().message.find("the GPU has no memory left") != std::string::npos);
  card.add();
  card.queue->run(*step);
  const auto event = card.queue->mark();
  event->wait();
  CHECK(event->is_reached());
  CHECK(card.first() == -1);
  CHECK(card.queue->failure()->message == failed.error().message);
}

TEST_CASE("cuda: memory that is gone when a queue wants its workspace is a failure") {
  gpu::EmulatorSettings settings;
  settings.memory_lost_at = 1;
  const Card card(settings);
  card.add();
  REQUIRE(card.queue->finish());
  CHECK_FALSE(card.device->allocate(1));  // which is an error of the call, as ever
  REQUIRE(card.queue->finish());
  card.queue->gather_rows(card.rows(2), card.rows(1), std::array<uint32_t, 1>{0});
  const auto failed = card.queue->finish();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().kind == ErrorKind::budget);
  CHECK(failed.error().message.find("--vram") != std::string::npos);
}

TEST_CASE("cuda: of memory that others take a part, the rest is there, and the device says so") {
  gpu::EmulatorSettings settings;
  settings.memory_lost_at = 1;
  settings.memory_lost_bytes = settings.memory_bytes - (8ULL << 20);
  const Card card(settings);
  const uint64_t before = card.device->memory().free_bytes;
  card.add();
  const uint64_t left = card.device->memory().free_bytes;
  CHECK(left == before - settings.memory_lost_bytes);
  CHECK(card.device->allocate(left));
  CHECK_FALSE(card.device->allocate(left + 1));
  CHECK(card.queue->finish());
  card.queue->gather_rows(card.rows(2), card.rows(1), std::array<uint32_t, 1>{0});  // its workspace is in what is left
  CHECK(card.queue->finish());
}

}  // namespace dspack::test::failure_test
