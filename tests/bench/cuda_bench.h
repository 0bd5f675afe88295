// What bench_cuda measures with: a device, its own limits, memory that is larger than any cache, and a table of rows.
//
// Everything is timed as it runs in a decode step: recorded once, many launches behind each other, each with other
// memory; what is printed is the median of several runs of the step, divided by its launches.
// Threads: one. Lifetime: slices live as long as the Memory that gave them. Errors: GPU memory that is not there, or
// a device that has failed, is an exception of a section, std::runtime_error; the other sections are tried.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/load_cuda.h"

namespace dspack::bench {

struct CudaBenchOptions {
  std::string library;
  kernels::CudaOptions cuda;
  bool quick = false;      // sizes that an emulated GPU manages in seconds: shows that it runs, measures nothing
  bool profile = false;    // each operation runs once, for a profiler; there are no figures
  double matrix_rate = 0;  // operations a second that another program has measured; 0: what linear() reaches
  std::vector<uint32_t> rows = {1, 2, 4, 8};  // of a decode step: a token, or those of a verify step
  std::vector<std::string> sections;          // empty: all
};

/// What an operation cannot do without.
struct Work {
  double bytes = 0;       // from and to the GPU's memory
  double operations = 0;  // a multiplication and an addition are two
};

/// What the card did in this run.
struct Limits {
  double bytes_per_second = 0;
  double operations_per_second = 0;
  [[nodiscard]] double floor_seconds(const Work& work) const;
};

/// Buffers of one section.
class Memory {
 public:
  Memory(kernels::Device& device, kernels::Queue& queue) : device_(device), queue_(queue) {}

  [[nodiscard]] kernels::Slice uninitialised(uint64_t bytes);
  [[nodiscard]] kernels::Slice upload(std::span<const std::byte> bytes);
  /// `count` numbers of a kind that weights, activations and caches have: no NaN, no infinity, not all the same.
  [[nodiscard]] kernels::Slice numbers(Dtype dtype, uint64_t count);
  [[nodiscard]] kernels::Rows rows(uint32_t rows, uint32_t cols);
  [[nodiscard]] kernels::Queue& queue() { return queue_; }

 private:
  kernels::Device& device_;
  kernels::Queue& queue_;
  std::vector<std::unique_ptr<kernels::Buffer>> buffers_;
  std::mt19937 random_{1};
};

/// Places of one size in a pool: each launch gets the next one, so that its data comes from memory and from no cache.
class Rotation {
 public:
  Rotation(Memory& memory, Dtype dtype, uint64_t count, uint64_t pool_bytes);
  [[nodiscard]] kernels::Slice at(uint32_t launch) const { return pool_.at(launch % places_ * place_bytes_); }
  [[nodiscard]] uint32_t places() const { return places_; }

 private:
  uint64_t place_bytes_;
  uint32_t places_;
  kernels::Slice pool_;
};

class CudaBench {
 public:
  CudaBench(kernels::Device& device, const CudaBenchOptions& options)
      : device_(device), options_(options), queue_(device.make_queue()) {}

  [[nodiscard]] kernels::Device& device() { return device_; }
  [[nodiscard]] kernels::Queue& queue() { return *queue_; }
  [[nodiscard]] const CudaBenchOptions& options() const { return options_; }
  [[nodiscard]] Memory memory() { return {device_, *queue_}; }
  /// The full size, or the one of --quick.
  template <class T>
  [[nodiscard]] T sized(T full, T quick) const {
    return options_.quick ? quick : full;
  }
  /// More than the caches of the largest cards hold.
  [[nodiscard]] uint64_t pool_bytes() const { return sized<uint64_t>(1ULL << 30, 1 << 16); }

  /// Median seconds of one launch in a step of at least `least_launches`. Errors: a device that has failed is an
  /// exception, as memory that is not there.
  [[nodiscard]] double seconds_per_launch(uint32_t least_launches, const std::function<void(uint32_t)>& launch);

  /// Median seconds of one of `calls` that are enqueued one after the other, not recorded: for what takes long against
  /// its start.
  [[nodiscard]] double seconds_per_call(uint32_t calls, const std::function<void()>& call);

  void set_limits(const Limits& limits) { limits_ = limits; }
  [[nodiscard]] const Limits& limits() const { return limits_; }
  /// Whether the device's products of many rows are cuBLASLt's.
  [[nodiscard]] bool has_cublaslt() const {
    return device_.description().find(", cuBLASLt ") != std::string_view::npos;
  }
  static void print_heading();
  /// One row of the table. `what`: operation, shape and number type.
  void print(const std::string& what, uint32_t rows, const Work& work, double seconds) const;

 private:
  void finish();
  [[nodiscard]] double seconds_of(const std::function<void()>& work);
  [[nodiscard]] double median_seconds(const std::function<void()>& work);

  kernels::Device& device_;
  CudaBenchOptions options_;
  std::unique_ptr<kernels::Queue> queue_;
  Limits limits_;
};

/// Ends the process where there is no such device.
[[nodiscard]] std::unique_ptr<kernels::Device> device_of(const CudaBenchOptions& options);  // bench_cuda.cpp

// The sections, each in a file of its own or with its kin.
[[nodiscard]] Limits measure_limits(CudaBench& bench);  // bench_cuda.cpp
void measure_products(CudaBench& bench);                // cuda_bench_products.cpp
void measure_experts(CudaBench& bench);
void measure_prefill_products(CudaBench& bench);
void measure_decode_attention(CudaBench& bench);  // cuda_bench_attention.cpp
void measure_prefill_attention(CudaBench& bench);
void measure_sparse_attention(CudaBench& bench);  // cuda_bench_sparse.cpp
void measure_small(CudaBench& bench);             // cuda_bench_small.cpp
void measure_layers(CudaBench& bench);            // cuda_bench_layers.cpp

}  // namespace dspack::bench
