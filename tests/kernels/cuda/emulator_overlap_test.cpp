// What the emulated GPU promises about launches that overlap: some blocks of one begin before the launch before has.
#include <vector>

#include "tests/kernels/cuda/emulator_lab.h"
#include "tests/kernels/cuda/gpu_lab.h"

namespace dspack::test::emulator_overlap_test {
namespace {

constexpr unsigned kBlocks = 6;
constexpr unsigned kThreads = 64;
constexpr size_t kValues = size_t{kBlocks} * kThreads;

enum class Wait { before_reading, after_reading, never };

__device__ size_t my_place() {
  return gpu::block_index().x * kThreads + gpu::thread_index();
}

__global__ void write_kernel(unsigned* to, unsigned value) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  to[my_place()] = value;
}

/// to = from + 1.
__global__ void copy_kernel(unsigned* to, const unsigned* from, Wait wait) {
  gpu::launch_dependents();
  if (wait == Wait::before_reading) gpu::griddepcontrol_wait();
  const unsigned value = from[my_place()];
  if (wait == Wait::after_reading) gpu::griddepcontrol_wait();
  to[my_place()] = value + 1;
}

/// Three launches, one behind the other; what the last one has made.
std::vector<unsigned> run(Wait wait, uint64_t seed, bool is_recorded = false) {
  GpuLab lab(seed);
  auto* first = lab.put(std::vector<unsigned>(kValues, 0));
  auto* second = lab.put(std::vector<unsigned>(kValues, 0));
  auto* third = lab.put(std::vector<unsigned>(kValues, 0));
  const gpu::LaunchShape shape{.grid_x = kBlocks, .threads = kThreads};
  const auto launch = [&] {
    gpu::launch_overlapping(lab.stream(), shape, write_kernel, first, 40U);
    gpu::launch_overlapping(lab.stream(), shape, copy_kernel, second, static_cast<const unsigned*>(first), wait);
    gpu::launch_overlapping(lab.stream(), shape, copy_kernel, third, static_cast<const unsigned*>(second), wait);
  };
  if (!is_recorded) {
    launch();
    return lab.get(third, kValues);
  }
  lab.stream().begin_recording();
  launch();
  const auto graph = lab.stream().end_recording();
  lab.stream().run(*graph);
  lab.stream().run(*graph);
  return lab.get(third, kValues);
}

}  // namespace

TEST_CASE("emulated GPU: launches that overlap and wait see what was written before") {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (const bool is_recorded : {false, true})
      CHECK(run(Wait::before_reading, seed, is_recorded) == std::vector<unsigned>(kValues, 42));
  }
}

TEST_CASE("emulated GPU: what is read before waiting for the launch before is old") {
  for (uint64_t seed = 0; seed < 6; ++seed)
    CHECK(run(Wait::after_reading, seed) != std::vector<unsigned>(kValues, 42));
}

TEST_CASE("emulated GPU: a kernel that overlaps and never waits ends the process") {
  const Ending ending = end_of([] { (void)run(Wait::never, 1); });
  CHECK(ending.is_abort);
  CHECK(ending.text.find("has not waited for the launch before") != std::string::npos);
}

}  // namespace dspack::test::emulator_overlap_test
