#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <optional>

#include "kernels/cuda/linear/cublaslt.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace dspack::gpu::cublaslt {
namespace {

// The library is some 500 MB, so it is not linked. An older driver may not start the newer version.
constexpr std::array<const char*, 2> kNames = {"libcublasLt.so.13", "libcublasLt.so.12"};

#if __has_include(<cublasLt.h>)
template <class Ours, class Theirs>
constexpr bool same(Ours ours, Theirs theirs) {
  return static_cast<int64_t>(ours) == static_cast<int64_t>(theirs);
}
static_assert(same(Status::success, CUBLAS_STATUS_SUCCESS));
static_assert(same(Status::not_initialized, CUBLAS_STATUS_NOT_INITIALIZED));
static_assert(same(Status::invalid_value, CUBLAS_STATUS_INVALID_VALUE));
static_assert(same(Status::arch_mismatch, CUBLAS_STATUS_ARCH_MISMATCH));
static_assert(same(Status::execution_failed, CUBLAS_STATUS_EXECUTION_FAILED));
static_assert(same(Status::not_supported, CUBLAS_STATUS_NOT_SUPPORTED));
static_assert(same(DataType::f32, CUDA_R_32F) && same(DataType::bf16, CUDA_R_16BF));
static_assert(same(DataType::f8_e4m3, CUDA_R_8F_E4M3));
static_assert(same(ComputeType::f32, CUBLAS_COMPUTE_32F));
static_assert(same(Operation::none, CUBLAS_OP_N) && same(Operation::transpose, CUBLAS_OP_T));
static_assert(same(MatmulAttribute::transpose_a, CUBLASLT_MATMUL_DESC_TRANSA));
static_assert(same(MatmulAttribute::transpose_b, CUBLASLT_MATMUL_DESC_TRANSB));
static_assert(same(MatmulAttribute::a_scale_pointer, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER));
static_assert(same(MatmulAttribute::b_scale_pointer, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER));
static_assert(same(PreferenceAttribute::max_workspace_bytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES));
static_assert(same(PreferenceAttribute::min_alignment_a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES));
static_assert(same(PreferenceAttribute::min_alignment_b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES));
static_assert(same(PreferenceAttribute::min_alignment_c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES));
static_assert(same(PreferenceAttribute::min_alignment_d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
#if CUBLAS_VERSION >= 120900
static_assert(same(MatmulAttribute::a_scale_mode, CUBLASLT_MATMUL_DESC_A_SCALE_MODE));
static_assert(same(MatmulAttribute::b_scale_mode, CUBLASLT_MATMUL_DESC_B_SCALE_MODE));
static_assert(same(ScaleMode::scalar, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F));
static_assert(same(ScaleMode::vec128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
static_assert(same(ScaleMode::blk128x128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
#endif
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(HeuristicResult, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(HeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
#endif

template <class Function>
bool find(void* library, const char* name, Function& to) {
  to = reinterpret_cast<Function>(dlsym(library, name));
  return to != nullptr;
}

bool find_all(void* library, Functions& to) {
  return find(library, "cublasLtGetVersion", to.get_version) && find(library, "cublasLtCreate", to.create) &&
         find(library, "cublasLtDestroy", to.destroy) &&
         find(library, "cublasLtMatmulDescCreate", to.matmul_desc_create) &&
         find(library, "cublasLtMatmulDescDestroy", to.matmul_desc_destroy) &&
         find(library, "cublasLtMatmulDescSetAttribute", to.matmul_desc_set) &&
         find(library, "cublasLtMatrixLayoutCreate", to.layout_create) &&
         find(library, "cublasLtMatrixLayoutDestroy", to.layout_destroy) &&
         find(library, "cublasLtMatmulPreferenceCreate", to.preference_create) &&
         find(library, "cublasLtMatmulPreferenceDestroy", to.preference_destroy) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", to.preference_set) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", to.get_heuristic) &&
         find(library, "cublasLtMatmul", to.matmul);
}

Result<std::unique_ptr<Library>> load(const std::string& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    return Error{ErrorKind::not_found, "cuBLASLt does not load: " + std::string(reason == nullptr ? file : reason)};
  }
  Functions functions = {};
  if (!find_all(handle, functions)) return Error{ErrorKind::unsupported, file + " is no cuBLASLt of version 12 or 13"};
  return Library::start(functions, file);
}

}  // namespace

Result<std::unique_ptr<Library>> open_library(const std::string& file) {
  if (!file.empty()) {
    std::error_code error;
    if (!std::filesystem::exists(file, error)) return Error{ErrorKind::not_found, "there is no cuBLASLt " + file};
    // dlopen would search the system's library folders for a name without a folder.
    return load(file.find('/') == std::string::npos ? "./" + file : file);
  }
  std::optional<Error> refusal;
  for (const char* name : kNames) {
    auto library = load(name);
    if (library) return library;
    if (library.error().kind != ErrorKind::not_found) refusal = library.error();
  }
  if (refusal) return *refusal;  // more informative than that the other file is missing
  return Error{ErrorKind::not_found, "there is neither libcublasLt.so.13 nor libcublasLt.so.12"};
}

}  // namespace dspack::gpu::cublaslt
