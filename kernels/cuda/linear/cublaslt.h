// cuBLASLt, loaded at run time: the part of NVIDIA's C interface that is used, the loaded library, and a product of one
// shape with its descriptors and the algorithm that the library's heuristic chose.
//
// Types, numbers and functions of the interface have been the same since cuBLAS 12.0 (scale modes: 12.8 and 12.9). They
// are declared here, and checked against cublasLt.h if a toolkit has it (cublaslt_library.cpp), so that only that check
// needs the header, and one from a toolkit before 12.9 suffices.
// Threads: a Library is thread-safe; a Matmul, like any descriptor, belongs to one thread at a time. Lifetime: a Matmul
// borrows its Library. Errors: a product that the library refuses, or has no memory for, is an empty result or false;
// any other failure is recorded and makes the device unusable (runtime.h, failure).
// Source: cuBLAS 13 documentation, "Using the cuBLASLt API".
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "format/base/result.h"

namespace dspack::gpu::cublaslt {

enum class Status : int32_t {
  success = 0,
  not_initialized = 1,
  alloc_failed = 3,
  invalid_value = 7,
  arch_mismatch = 8,
  execution_failed = 13,
  internal_error = 14,
  not_supported = 15,
};
enum class DataType : int32_t { f32 = 0, bf16 = 14, f8_e4m3 = 28 };
enum class ComputeType : int32_t { f32 = 68 };
enum class Operation : int32_t { none = 0, transpose = 1 };
enum class ScaleMode : int32_t { scalar = 0, vec128 = 4, blk128x128 = 5 };

enum class MatmulAttribute : int32_t {
  transpose_a = 3,
  transpose_b = 4,
  a_scale_pointer = 17,
  b_scale_pointer = 18,
  a_scale_mode = 31,
  b_scale_mode = 32,
};
enum class PreferenceAttribute : int32_t {
  max_workspace_bytes = 1,
  min_alignment_a = 5,
  min_alignment_b = 6,
  min_alignment_c = 7,
  min_alignment_d = 8,
};

using Handle = struct Context*;
using MatmulDesc = struct MatmulDescription*;
using MatrixLayout = struct MatrixLayoutDescription*;
using Preference = struct PreferenceDescription*;

struct Algorithm {
  uint64_t data[8] = {};
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes = 0;
  Status state = Status::not_supported;
  float waves = 0;
  int32_t reserved[4] = {};
};

/// The functions that libcublasLt exports.
struct Functions {
  size_t (*get_version)();  // 130100: 13.1.0
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*matmul_desc_create)(MatmulDesc*, ComputeType, DataType of_scales);
  Status (*matmul_desc_destroy)(MatmulDesc);
  Status (*matmul_desc_set)(MatmulDesc, MatmulAttribute, const void* value, size_t bytes);
  Status (*layout_create)(MatrixLayout*, DataType, uint64_t rows, uint64_t cols, int64_t leading_dimension);
  Status (*layout_destroy)(MatrixLayout);
  Status (*preference_create)(Preference*);
  Status (*preference_destroy)(Preference);
  Status (*preference_set)(Preference, PreferenceAttribute, const void* value, size_t bytes);
  Status (*get_heuristic)(Handle, MatmulDesc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
                          Preference, int32_t asked, HeuristicResult*, int32_t* found);
  Status (*matmul)(Handle, MatmulDesc, const void* alpha, const void* a, MatrixLayout, const void* b, MatrixLayout,
                   const void* beta, const void* c, MatrixLayout, void* d, MatrixLayout, const Algorithm*,
                   void* workspace, size_t workspace_bytes, void* stream);
};

class Library {
 public:
  /// Errors: unsupported (the library does not start on this machine). `name`: for messages.
  [[nodiscard]] static Result<std::unique_ptr<Library>> start(const Functions& functions, const std::string& name);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] const Functions& functions() const { return functions_; }
  [[nodiscard]] Handle handle() const { return handle_; }
  [[nodiscard]] size_t version() const { return functions_.get_version(); }
  /// For example "13.1.0".
  [[nodiscard]] std::string version_words() const;

 private:
  Library(const Functions& functions, Handle handle) : functions_(functions), handle_(handle) {}
  Functions functions_;
  Handle handle_;
};

/// Opens the library at `file`; if empty, libcublasLt.so.13, or else .12, as the system's loader finds them. It stays
/// loaded until the process ends. Errors: not_found, unsupported. Implemented by cublaslt_library.cpp on NVIDIA
/// hardware, and by the test suite's emulated GPU.
[[nodiscard]] Result<std::unique_ptr<Library>> open_library(const std::string& file);

/// y[n, m] = x[n, k] . weight[m, k], all three row-major. For cuBLASLt, whose matrices are column-major, this is D =
/// A^T B with A the weight, B the inputs and D the outputs: its "TN" format, the only one that FP8 supports before
/// Blackwell.
///
///            cuBLASLt             here
///   A        [k, m], lda          weight [m, k], rows lda apart
///   B        [k, n], ldb          x [n, k], rows ldb apart
///   D        [m, n], ldd          y [n, m], FP32, rows ldd apart
struct MatmulShape {
  DataType type = DataType::bf16;  // type of weight and inputs. f8_e4m3: with scales
  uint64_t m = 0, n = 0, k = 0;
  uint64_t lda = 0, ldb = 0, ldd = 0;
  [[nodiscard]] auto operator<=>(const MatmulShape&) const = default;
};

/// Addresses are multiples of 16 bytes. Layout of the scales (cuBLAS documentation, "128-element 1D and 128x128 2D
/// Block Scaling For FP8 Data Types", "Scaling factors layouts"), with L = ceil(k / 128):
///   a_scale  for 128 x 128 weights: [ceil(m / 128), L rounded up to 4], the last dimension contiguous (K-major)
///   b_scale  for 128 values of an input row: [L, n], the last dimension contiguous (N-major), n a multiple of 4
struct MatmulPlaces {
  const void* a = nullptr;
  const void* b = nullptr;
  float* d = nullptr;
  const float* a_scale = nullptr;  // f8_e4m3 only
  const float* b_scale = nullptr;
};

/// 256-byte aligned, as the library requires.
struct MatmulWorkspace {
  void* memory = nullptr;
  uint64_t bytes = 0;
};

class Matmul {
 public:
  /// Null: the library refuses it. `places`: those of a call; the descriptor keeps its scale pointers.
  [[nodiscard]] static std::unique_ptr<Matmul> plan(const Library& library, const MatmulShape& shape,
                                                    const MatmulPlaces& places, uint64_t workspace_bytes);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Enqueues the product. False: the library refuses it after all and has enqueued nothing.
  [[nodiscard]] bool run(const MatmulPlaces& places, const MatmulWorkspace& workspace, void* stream);

 private:
  Matmul(const Library& library, const MatmulShape& shape) : library_(library), shape_(shape) {}
  [[nodiscard]] bool describe();
  [[nodiscard]] bool set_scales(const MatmulPlaces& places);
  [[nodiscard]] bool find_algorithm(uint64_t workspace_bytes);

  const Library& library_;
  MatmulShape shape_;
  MatmulDesc desc_ = nullptr;
  MatrixLayout a_ = nullptr, b_ = nullptr, d_ = nullptr;
  Algorithm algorithm_;
};

}  // namespace dspack::gpu::cublaslt
