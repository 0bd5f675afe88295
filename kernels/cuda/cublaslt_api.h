// What this program uses of cuBLASLt, whose library it loads while it runs: types, numbers and functions of NVIDIA's C
// interface, which have been the same since cuBLAS 12.0 (scale modes: 12.8 and 12.9). Written down here, and held to
// cublasLt.h where a toolkit has it (cublaslt_library.cpp), so that nothing but that check needs the header, and one
// from a toolkit before 12.9 will do.
// Threads: plain values; the functions are thread-safe as long as each descriptor is one thread's.
// Source: cuBLAS 13 documentation, "Using the cuBLASLt API".
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace dspack::gpu::cublaslt
