// Every operation of a decode step and of prefill on a GPU, at DeepSeek-V3's shapes, beside its floor.
//
//   bench_cuda [--cuda-library FILE] [--device N] [--precision exact|split|bf16|fp8] [--cublaslt FILE|off]
//              [--only SECTION,...] [--matrix-rate TFLOP/s] [--quick]
//              [--rows 1,2,4,8] [--profile]
//
// Sections: products, experts, attention, sparse, prefill (products of many rows), prompts (their attention), small,
// layers (all of a decode step but embedding and head). One table row a line:
//   floor     max(bytes / copy bandwidth, operations / matrix rate), both measured at the start of the same run:
//             bandwidth by copying within the GPU's memory (bytes read + bytes written), the matrix rate by linear() of
//             precision bf16 with a large BF16 matrix and thousands of rows, whose rounding is a fiftieth of it. Where
//             there is cuBLASLt, that is its product; else this project's own kernel, which is not the card's best:
//             --matrix-rate gives what another program reached. The line says which.
//   of floor  floor / time; 100 % is as fast as the card.
// Section prefill times products of precisions bf16 and fp8 twice where there is cuBLASLt: "linear" has it, "linear,
// own kernels" has not. Section experts does the same with a prompt's tokens, whose calls are not recorded. --profile
// runs every operation once, for a profiler that is started around it (ncu), and prints no figures. --rows: of a decode
// step, those that products and experts are timed with. Status 77: no GPU, nothing was measured.
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
    "usage: bench_cuda [--cuda-library FILE] [--device N] [--precision exact|split|bf16|fp8] [--cublaslt FILE|off]\n"
    "                  [--only products,experts,attention,sparse,prefill,prompts,small,layers] [--matrix-rate TFLOP/s] "
    "[--quick]\n"
    "                  [--rows 1,2,4,8] [--profile]\n";

struct Section {
  const char* name;
  void (*measure)(CudaBench&);
};
constexpr Section kSections[] = {{"products", measure_products},
                                 {"experts", measure_experts},
                                 {"attention", measure_decode_attention},
                                 {"sparse", measure_sparse_attention},
                                 {"prefill", measure_prefill_products},
                                 {"prompts", measure_prefill_attention},
                                 {"small", measure_small},
                                 {"layers", measure_layers}};

bool is_section(const std::string& name) {
  return std::ranges::any_of(kSections, [&](const Section& section) { return section.name == name; });
}

/// Not of a recorded step: there the driver copies with a kernel of its own, which reached 2.8 TB/s of an H200's 4.3.
double copy_bandwidth(CudaBench& bench) {
  Memory memory = bench.memory();
  const uint64_t bytes = bench.pool_bytes();
  const kernels::Slice from = memory.numbers(Dtype::f32, bytes / sizeof(float));
  const kernels::Slice to = memory.uninitialised(bytes);
  const double seconds = bench.seconds_per_call(bench.sized(8U, 1U), [&] { bench.queue().copy(to, from, bytes); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

/// Operations a second of linear() with a BF16 matrix.
double linear_rate(CudaBench& bench) {
  const auto in = bench.sized<uint32_t>(8192, 128), out = 4 * in, rows = bench.sized<uint32_t>(4096, 128);
  Memory memory = bench.memory();
  const kernels::Weight weight{{kernels::Coding::bf16, out, in}, {memory.numbers(Dtype::bf16, uint64_t{out} * in)}};
  const kernels::Rows x = memory.rows(rows, in), y = memory.rows(rows, out);
  const double seconds = bench.seconds_per_launch(1, [&](uint32_t) { bench.queue().linear(weight, x, y); });
  return 2.0 * out * in * rows / seconds;
}

/// False: the device failed, or a section had not the memory that it needs.
bool measure(const CudaBenchOptions& options) {
  const auto device = device_of(options);
  fmt::print("{}; precision {}{}\n", device->description(), to_string(options.cuda.precision),
             options.quick ? "; QUICK: tiny sizes, no figure means anything" : "");
  CudaBench bench(*device, options);
  bool complete = true;
  const auto run = [&](const char* name, const auto& work) {
    try {
      work();
    } catch (const std::runtime_error& error) {
      fmt::print("DID NOT RUN: the rest of {}: {}\n", name, error.what());
      complete = false;
    }
  };
  if (!options.profile) {
    run("the card's limits", [&] { bench.set_limits(measure_limits(bench)); });
    CudaBench::print_heading();
  }
  for (const Section& section : kSections) {
    if (options.sections.empty() || std::ranges::find(options.sections, section.name) != options.sections.end())
      run(section.name, [&] { section.measure(bench); });
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
    if (flag == "--profile") {
      options.profile = true;
      continue;
    }
    if (i + 1 == argc) wrong_usage();
    const std::string value = argv[++i];
    if (flag == "--cuda-library") {
      options.library = value;
    } else if (flag == "--device") {
      options.cuda.index = static_cast<unsigned>(std::strtoul(value.c_str(), nullptr, 10));
    } else if (flag == "--cublaslt") {
      options.cuda.cublaslt = value;
    } else if (flag == "--matrix-rate") {
      options.matrix_rate = 1e12 * std::strtod(value.c_str(), nullptr);
    } else if (const auto precision = kernels::parse_precision(value); flag == "--precision" && precision) {
      options.cuda.precision = *precision;
    } else if (flag == "--rows") {
      options.rows.clear();
      std::istringstream numbers(value);
      for (std::string number; std::getline(numbers, number, ',');) {
        options.rows.push_back(static_cast<uint32_t>(std::strtoul(number.c_str(), nullptr, 10)));
        if (options.rows.back() == 0 || options.rows.back() > 64) wrong_usage();
      }
      if (options.rows.empty()) wrong_usage();
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

std::unique_ptr<kernels::Device> device_of(const CudaBenchOptions& options) {
  auto device = kernels::load_cuda_device(options.library, options.cuda);
  if (device) return std::move(*device);
  const bool no_gpu = device.error().kind == ErrorKind::not_found;
  fmt::print(stderr, "{}: bench_cuda measured nothing: {}\n", no_gpu ? "SKIPPED" : "FAILED", device.error().message);
  std::exit(no_gpu ? kNoGpu : 1);
}

Limits measure_limits(CudaBench& bench) {
  Limits limits{.bytes_per_second = copy_bandwidth(bench), .operations_per_second = bench.options().matrix_rate};
  std::string source = "given by --matrix-rate";
  if (limits.operations_per_second == 0) {
    CudaBenchOptions rounding = bench.options();
    rounding.cuda.precision = kernels::Precision::bf16;
    const auto device = device_of(rounding);
    CudaBench rounded(*device, rounding);
    limits.operations_per_second = linear_rate(rounded);
    source = fmt::format("linear() with BF16 weights on {}", device->description());
  }
  fmt::print("copy bandwidth: {:.1f} GB/s\n", 1e-9 * limits.bytes_per_second);
  fmt::print("matrix rate: {:.2f} TFLOP/s ({})\n", 1e-12 * limits.operations_per_second, source);
  fmt::print("linear() in precision {}, BF16 weights, thousands of rows: {:.2f} TFLOP/s\n",
             to_string(bench.options().cuda.precision), 1e-12 * linear_rate(bench));
  return limits;
}

}  // namespace dspack::bench

int main(int argc, char** argv) {
  const auto options = dspack::bench::parse(argc, argv);
  return dspack::bench::measure(options) ? 0 : 1;
}
