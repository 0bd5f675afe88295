// Every operation of a decode step and of prefill on a GPU, at DeepSeek-V3's shapes, beside its floor.
//
//   bench_cuda [--cuda-library FILE] [--device N] [--precision exact|bf16|fp8] [--only SECTION,...]
//              [--matrix-rate TFLOP/s] [--quick]
//
// Sections: products, experts, attention, prefill, small, layers (all of a decode step but embedding and head). One
// table row a line:
//   floor     max(bytes / copy bandwidth, operations / matrix rate), both measured at the start of the same run:
//             bandwidth by copying within the GPU's memory (bytes read + bytes written), the matrix rate by linear() of
//             precision bf16 with a large BF16 matrix and as many rows. The latter is this project's own kernel, not
//             the card's best: --matrix-rate gives what another program (cuBLAS) reached.
//   of floor  floor / time; 100 % is as fast as the card.
// Status 77: no GPU, nothing was measured.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "tests/bench/cuda_bench.h"

namespace dspack::bench {
namespace {

constexpr int kNoGpu = 77;
constexpr const char* kUsage =
    "usage: bench_cuda [--cuda-library FILE] [--device N] [--precision exact|bf16|fp8]\n"
    "                  [--only products,experts,attention,prefill,small,layers] [--matrix-rate TFLOP/s] [--quick]\n";

struct Section {
  const char* name;
  void (*measure)(CudaBench&);
};
constexpr Section kSections[] = {{"products", measure_products},
                                 {"experts", measure_experts},
                                 {"attention", measure_decode_attention},
                                 {"prefill", measure_prefill_products},
                                 {"prefill", measure_prefill_attention},
                                 {"small", measure_small},
                                 {"layers", measure_layers}};

bool is_section(const std::string& name) {
  return std::ranges::any_of(kSections, [&](const Section& section) { return section.name == name; });
}

double copy_bandwidth(CudaBench& bench) {
  Memory memory = bench.memory();
  const uint64_t bytes = bench.pool_bytes();
  const kernels::Slice from = memory.numbers(Dtype::f32, bytes / sizeof(float));
  const kernels::Slice to = memory.uninitialised(bytes);
  const double seconds = bench.seconds_per_launch(4, [&](uint32_t) { bench.queue().copy(to, from, bytes); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

/// Operations a second of linear() with a BF16 matrix and as many rows as it has columns.
double linear_rate(CudaBench& bench) {
  const auto side = bench.sized<uint32_t>(8192, 128);
  Memory memory = bench.memory();
  const kernels::Weight weight{.dtype = Dtype::bf16,
                               .out = side,
                               .in = side,
                               .data = memory.numbers(Dtype::bf16, uint64_t{side} * side),
                               .scale = {}};
  const kernels::Rows x = memory.rows(side, side), y = memory.rows(side, side);
  const double seconds = bench.seconds_per_launch(1, [&](uint32_t) { bench.queue().linear(weight, x, y); });
  return 2.0 * side * side * side / seconds;
}

std::unique_ptr<kernels::Device> device_of(const CudaBenchOptions& options, kernels::Precision precision) {
  kernels::CudaOptions cuda = options.cuda;
  cuda.precision = precision;
  auto device = kernels::load_cuda_device(options.library, cuda);
  if (device) return std::move(*device);
  const bool no_gpu = device.error().kind == ErrorKind::not_found;
  fmt::print(stderr, "{}: bench_cuda measured nothing: {}\n", no_gpu ? "SKIPPED" : "FAILED", device.error().message);
  std::exit(no_gpu ? kNoGpu : 1);
}

/// False: a section had not the memory that it needs.
bool measure(const CudaBenchOptions& options) {
  const auto device = device_of(options, options.cuda.precision);
  fmt::print("{}; precision {}{}\n", device->description(), to_string(options.cuda.precision),
             options.quick ? "; QUICK: tiny sizes, no figure means anything" : "");
  CudaBench bench(*device, options);
  bench.set_limits(measure_limits(bench));
  CudaBench::print_heading();
  bool complete = true;
  for (const Section& section : kSections) {
    if (!options.sections.empty() && std::ranges::find(options.sections, section.name) == options.sections.end())
      continue;
    try {
      section.measure(bench);
    } catch (const std::runtime_error& error) {
      fmt::print("DID NOT RUN: the rest of {}: {}\n", section.name, error.what());
      complete = false;
    }
  }
  return complete;
}

[[noreturn]] void wrong_usage() {
  (void)std::fputs(kUsage, stderr);
  std::exit(2);
}

CudaBenchOptions parse(int argc, char** argv) {
  CudaBenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      options.quick = true;
      continue;
    }
    if (i + 1 == argc) wrong_usage();
    const std::string value = argv[++i];
    if (flag == "--cuda-library") {
      options.library = value;
    } else if (flag == "--device") {
      options.cuda.index = static_cast<unsigned>(std::strtoul(value.c_str(), nullptr, 10));
    } else if (flag == "--matrix-rate") {
      options.matrix_rate = 1e12 * std::strtod(value.c_str(), nullptr);
    } else if (const auto precision = kernels::parse_precision(value); flag == "--precision" && precision) {
      options.cuda.precision = *precision;
    } else if (flag == "--only") {
      std::istringstream names(value);
      for (std::string name; std::getline(names, name, ',');) {
        if (!is_section(name)) wrong_usage();
        options.sections.push_back(name);
      }
    } else {
      wrong_usage();
    }
  }
  return options;
}

}  // namespace

Limits measure_limits(CudaBench& bench) {
  const Limits limits{.bytes_per_second = copy_bandwidth(bench), .operations_per_second = [&] {
                        if (bench.options().matrix_rate > 0) return bench.options().matrix_rate;
                        const auto device = device_of(bench.options(), kernels::Precision::bf16);
                        CudaBench rounded(*device, bench.options());
                        return linear_rate(rounded);
                      }()};
  fmt::print("copy bandwidth: {:.1f} GB/s\n", 1e-9 * limits.bytes_per_second);
  fmt::print("matrix rate: {:.2f} TFLOP/s ({})\n", 1e-12 * limits.operations_per_second,
             bench.options().matrix_rate > 0 ? "given by --matrix-rate" : "linear() in precision bf16, BF16 weights");
  fmt::print("linear() in precision {}, BF16 weights, as many rows as columns: {:.2f} TFLOP/s\n",
             to_string(bench.options().cuda.precision), 1e-12 * linear_rate(bench));
  return limits;
}

}  // namespace dspack::bench

int main(int argc, char** argv) {
  const auto options = dspack::bench::parse(argc, argv);
  return dspack::bench::measure(options) ? 0 : 1;
}
