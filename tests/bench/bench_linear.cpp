// FP8 linear on matrices of the shape of a DeepSeek-V3 expert, streamed from memory, against reading the same memory.
//
//   bench_linear [threads] [instruction set] [rows]
//
// One row of x is bound by memory: the ratio of both speeds is what the kernel loses. Both are measured in turn, one
// matrix at a time, over more memory than a cache holds. A matrix takes about a millisecond, so on a machine that
// others use as well many of the samples are undisturbed; the median and the best of all samples are printed.
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "format/base/check.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::kernels {
namespace {

constexpr uint32_t kOut = 2048;
constexpr uint32_t kIn = 7168;
constexpr uint32_t kBlock = 128;
constexpr uint32_t kMatrices = 20;  // 294 MB
constexpr uint64_t kMatrixBytes = uint64_t{kOut} * kIn;
constexpr uint64_t kScaleBytes = uint64_t{kOut / kBlock} * (kIn / kBlock) * sizeof(float);
constexpr uint32_t kRuns = 7;

template <class Work>
double seconds(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<Buffer> allocate(Device& device, uint64_t bytes) {
  auto buffer = device.allocate(bytes);
  DSPACK_CHECK(buffer.has_value(), buffer.error().message);
  return std::move(buffer).value();
}

void fill(Buffer& weights, Buffer& scales, Buffer& x) {
  uint32_t state = 1;  // every code but the two NaN; speed does not depend on the values
  for (std::byte& code : host_bytes(weights))
    code = static_cast<std::byte>((state = state * 1664525 + 1013904223) % 127);
  for (Buffer* floats : {&scales, &x}) {
    auto bytes = host_bytes(*floats);
    std::fill_n(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float), 1.0F);
  }
}

/// Sums memory as 64-bit words, an equal part on each thread.
class Reader {
 public:
  explicit Reader(unsigned threads) : threads_(threads), arena_(static_cast<int>(threads)), sums_(threads) {}

  uint64_t read(std::span<const std::byte> bytes) {
    const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
    const size_t count = bytes.size() / sizeof(uint64_t);
    arena_.execute([&] {
      tbb::parallel_for(
          0U, threads_,
          [&](unsigned t) {
            sums_[t] = std::accumulate(words + count * t / threads_, words + count * (t + 1) / threads_, uint64_t{0});
          },
          tbb::static_partitioner{});
    });
    return std::accumulate(sums_.begin(), sums_.end(), uint64_t{0});
  }

 private:
  unsigned threads_;
  tbb::task_arena arena_;
  std::vector<uint64_t> sums_;
};

struct Speed {
  double median = 0;  // GB/s
  double best = 0;
};

Speed speed_of(std::vector<double> seconds_per_matrix) {
  std::ranges::sort(seconds_per_matrix);
  const auto bytes = static_cast<double>(kMatrixBytes);
  return {bytes / seconds_per_matrix[seconds_per_matrix.size() / 2] / 1e9, bytes / seconds_per_matrix[0] / 1e9};
}

void measure(Device& device, unsigned threads, uint32_t rows) {
  const auto weights = allocate(device, kMatrices * kMatrixBytes);
  const auto scales = allocate(device, kScaleBytes);
  const auto x = allocate(device, uint64_t{rows} * kIn * sizeof(float));
  const auto y = allocate(device, uint64_t{rows} * kOut * sizeof(float));
  fill(*weights, *scales, *x);
  const auto queue = device.make_queue();
  Reader reader(threads);
  volatile uint64_t sink = 0;
  std::vector<double> linear;
  std::vector<double> reading;
  for (uint32_t i = 0; i < kRuns * kMatrices; ++i) {
    const Weight weight{{kernels::Coding::f8_e4m3, kOut, kIn, kBlock, kBlock},
                        {{weights.get(), i % kMatrices * kMatrixBytes}, {scales.get(), 0}}};
    linear.push_back(seconds([&] {
      queue->linear(weight, {{x.get(), 0}, rows, kIn, kIn}, {{y.get(), 0}, rows, kOut, kOut});
      queue->synchronize();
    }));
    const uint64_t far = (i + kMatrices / 2) % kMatrices * kMatrixBytes;  // out of every cache by now
    reading.push_back(seconds([&] { sink = reader.read(host_bytes(*weights).subspan(far, kMatrixBytes)); }));
  }
  const Speed fp8 = speed_of(linear);
  const Speed read = speed_of(reading);
  std::printf("%s, FP8 linear [%u, %u] x %u row(s): median %.1f GB/s, memory read %.1f, ratio %.2f;",
              std::string(device.description()).c_str(), kOut, kIn, rows, fp8.median, read.median,
              fp8.median / read.median);
  std::printf(" best %.1f GB/s (%.0f GFLOP/s), memory read %.1f, ratio %.2f\n", fp8.best, 2 * rows * fp8.best,
              read.best, fp8.best / read.best);
}

}  // namespace
}  // namespace dspack::kernels

int main(int argc, char** argv) {
  dspack::kernels::CpuOptions options;
  if (argc > 1) options.threads = static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10));
  if (argc > 2) options.instruction_set = argv[2];
  const auto rows = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 1U;
  auto device = dspack::kernels::make_cpu_device(options);
  if (!device) {
    std::fprintf(stderr, "bench_linear: %s\n", device.error().message.c_str());
    return 1;
  }
  const unsigned threads = options.threads != 0 ? options.threads : std::thread::hardware_concurrency();
  dspack::kernels::measure(**device, threads, rows == 0 ? 1 : rows);
  return 0;
}
