// A cuBLASLt for the emulated GPU: the functions that this program uses, which compute in plain C++, behind what the
// stream holds. It is stricter than NVIDIA's:
//   * Matrices, scales and workspace must lie in the GPU's memory, whole, and where the documentation wants them.
//   * An algorithm serves the shape that it was chosen for and no other; descriptors that nobody destroys are counted.
//   * FP8 is multiplied in the "TN" format only, with scales of 128 x 128 for the one matrix and of 128 for the other.
// Source: cuBLAS 13 documentation, cublasLtMatmul() and "Scaling factors layouts".
// Threads: one. Lifetime: settings are the process's. Errors: DSPACK_CHECK for what a caller does wrong.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/cuda/linear/cublaslt.h"

namespace dspack::gpu {

/// The library that --dev cublaslt names on the emulated GPU; there is none that is found without being named, unless a
/// test has set a version.
inline constexpr char kEmulatedCublasLt[] = "emulated";

struct CublasLtSettings {
  size_t version = 0;  // 130100: 13.1.0; 0: there is none
  bool starts = true;
  /// Whether the heuristic finds no algorithm; empty: it finds one for all that is allowed.
  std::function<bool(cublaslt::DataType, uint64_t m, uint64_t n, uint64_t k)> refuses = {};
  /// GPU memory that the first product of a type takes for good, as code; without it the product is not run.
  uint64_t code_bytes = 0;
  cublaslt::Status run_status = cublaslt::Status::success;  // of a product, after the heuristic had an algorithm
};
void configure_cublaslt(const CublasLtSettings& settings);

/// Since the settings were made; descriptors: that are there now.
struct CublasLtCounts {
  uint64_t heuristics = 0;
  uint64_t bf16_products = 0;  // enqueued
  uint64_t f8_products = 0;
  int64_t descriptors = 0;
};
[[nodiscard]] CublasLtCounts cublaslt_counts();

}  // namespace dspack::gpu
