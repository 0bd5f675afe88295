// Linear on matrices of the shape of a DeepSeek-V3 expert, or of another one, streamed from memory, against reading the
// same memory.
//
//   bench_linear [threads] [instruction set] [rows] [fp8 | bf16 | i8 | int4 | awq | nvfp4 | mxfp4]
//                [exact | bf16 | amx | int8] [OUT IN]
//
// One row of x is bound by memory: the ratio of both speeds is what the kernel loses. Both are measured in turn, one
// matrix at a time, over more memory than a cache holds. A matrix takes about a millisecond, so on a machine that
// others use as well many of the samples are undisturbed; the median and the best of all samples are printed.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "format/base/check.h"
#include "kernels/cpu/cpu_peak.h"

namespace dspack::kernels {
namespace {

constexpr uint64_t kAllBytes = 290'000'000;  // at least
constexpr uint32_t kRuns = 7;

struct Case {
  std::string_view name;
  WeightForm form;
};
constexpr Case kCases[] = {
    {.name = "fp8", .form = {Coding::f8_e4m3, 2048, 7168, 128, 128}},
    {.name = "bf16", .form = {Coding::bf16, 2048, 7168}},
    {.name = "i8", .form = {Coding::i8, 2048, 7168, 1, 7168}},
    {.name = "int4", .form = {Coding::i4, 2048, 7168, 1, 32, ScaleCoding::bf16}},
    {.name = "awq", .form = {Coding::u4, 2048, 7168, 1, 128, ScaleCoding::f16}},
    {.name = "nvfp4", .form = {Coding::e2m1, 2048, 7168, 1, 16, ScaleCoding::f8_e4m3, GlobalScale::times}},
    {.name = "mxfp4", .form = {Coding::e2m1, 2048, 7168, 1, 32, ScaleCoding::f8_e8m0}},
};

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

/// Planes of many matrices, side by side.
struct Matrices {
  Matrices(Device& device, const WeightForm& shape) : form(shape) {
    bytes = plane_size(form, kCodes).bytes + plane_size(form, kScales).bytes + plane_size(form, kZeros).bytes;
    count = static_cast<uint32_t>(kAllBytes / bytes + 1);
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      const uint64_t size = plane_size(form, plane).bytes;
      if (size != 0) planes[plane] = allocate(device, count * size);
    }
    // Every code but FP8's two NaN, scales around 1 whatever their type. Speed does not depend on the values, but for
    // subnormal ones, each of which costs about a hundred cycles: BF16 gets none.
    uint32_t state = 1;
    const std::span<std::byte> codes = host_bytes(*planes[kCodes]);
    for (std::byte& code : codes)
      code = static_cast<std::byte>((state = state * 1664525 + 1013904223) % 127);
    for (size_t high = 1; form.coding == Coding::bf16 && high < codes.size(); high += 2)
      codes[high] = std::byte{0x3f};
    for (const size_t plane : {kScales, kGlobal, kZeros}) {
      if (planes[plane] != nullptr) std::ranges::fill(host_bytes(*planes[plane]), std::byte{0x3f});
    }
  }
  [[nodiscard]] Weight at(uint32_t index) const {
    Weight weight{form};
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      if (planes[plane] != nullptr) weight.planes[plane] = {planes[plane].get(), index * plane_size(form, plane).bytes};
    }
    return weight;
  }

  WeightForm form;
  uint64_t bytes = 0;  // of one
  uint32_t count = 0;
  std::unique_ptr<Buffer> planes[kPlanes];
};

struct Speed {
  double median = 0;  // GB/s
  double best = 0;
};

Speed speed_of(std::vector<double> seconds_per_matrix, uint64_t matrix_bytes) {
  std::ranges::sort(seconds_per_matrix);
  const auto bytes = static_cast<double>(matrix_bytes);
  return {bytes / seconds_per_matrix[seconds_per_matrix.size() / 2] / 1e9, bytes / seconds_per_matrix[0] / 1e9};
}

void measure(Device& device, unsigned threads, uint32_t rows, const Case& c) {
  const Matrices matrices(device, c.form);
  const uint64_t code_bytes = plane_size(c.form, kCodes).bytes;
  const uint32_t out = c.form.out, in = c.form.in;
  const auto x = allocate(device, uint64_t{rows} * in * sizeof(float));
  const auto y = allocate(device, uint64_t{rows} * out * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(host_bytes(*x).data()), uint64_t{rows} * in, 1.0F);
  const auto queue = device.make_queue();
  Workers workers(threads);
  volatile uint64_t sink = 0;
  std::vector<double> linear;
  std::vector<double> reading;
  for (uint32_t i = 0; i < kRuns * matrices.count; ++i) {
    const Weight weight = matrices.at(i % matrices.count);
    linear.push_back(seconds([&] {
      queue->linear(weight, {{x.get(), 0}, rows, in, in}, {{y.get(), 0}, rows, out, out});
      queue->synchronize();
    }));
    const uint64_t far = (i + matrices.count / 2) % matrices.count * code_bytes;  // out of every cache by now
    const auto codes = host_bytes(*matrices.planes[kCodes]).subspan(far, code_bytes);
    reading.push_back(seconds([&] { sink = sum_words(workers, codes); }));
  }
  const Speed product = speed_of(linear, matrices.bytes);
  const Speed read = speed_of(reading, code_bytes);
  const double weights = static_cast<double>(out) * in / static_cast<double>(matrices.bytes);
  std::printf("%s, %s linear [%u, %u] x %u row(s): median %.1f GB/s, memory read %.1f, ratio %.2f;",
              std::string(device.description()).c_str(), std::string(c.name).c_str(), out, in, rows, product.median,
              read.median, product.median / read.median);
  std::printf(" best %.1f GB/s (%.1f G weights/s, %.0f GFLOP/s), memory read %.1f, ratio %.2f\n", product.best,
              weights * product.best, 2 * rows * weights * product.best, read.best, product.best / read.best);
}

}  // namespace
}  // namespace dspack::kernels

int main(int argc, char** argv) {
  dspack::kernels::CpuOptions options;
  if (argc > 1) options.threads = static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10));
  if (argc > 2) options.instruction_set = argv[2];
  const auto rows = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 1U;
  if (argc > 5) options.precision = dspack::kernels::parse_precision(argv[5]).value_or(options.precision);
  auto device = dspack::kernels::make_cpu_device(options);
  if (!device) {
    std::fprintf(stderr, "bench_linear: %s\n", device.error().message.c_str());
    return 1;
  }
  const unsigned threads = options.threads != 0 ? options.threads : std::thread::hardware_concurrency();
  const std::string_view wanted = argc > 4 ? argv[4] : "fp8";
  for (dspack::kernels::Case c : dspack::kernels::kCases) {
    if (c.name != wanted) continue;
    if (argc > 7) {
      c.form.out = static_cast<uint32_t>(std::strtoul(argv[6], nullptr, 10));
      c.form.in = static_cast<uint32_t>(std::strtoul(argv[7], nullptr, 10));
    }
    dspack::kernels::measure(**device, threads, rows == 0 ? 1 : rows, c);
    return 0;
  }
  std::fprintf(stderr, "bench_linear: no weights of this name; see the first lines of its source\n");
  return 2;
}
