// A library with the functions that this program wants of cuBLASLt, which does nothing: for tests of loading. Compiled
// with DOES_NOT_START it is one that an old driver keeps from starting.
#include <cstddef>

extern "C" {
#define EXPORTED __attribute__((visibility("default")))
#ifdef DOES_NOT_START
EXPORTED int cublasLtCreate(void** /*handle*/) {
  return 1;  // CUBLAS_STATUS_NOT_INITIALIZED
}
#else
EXPORTED int cublasLtCreate(void** handle) {
  static int the_library;
  *handle = &the_library;
  return 0;
}
#endif
EXPORTED size_t cublasLtGetVersion() {
  return 120'904;
}
// Found, and not called.
#define NOT_CALLED(name) \
  EXPORTED int name() {  \
    return 0;            \
  }
NOT_CALLED(cublasLtDestroy)
NOT_CALLED(cublasLtMatmulDescCreate)
NOT_CALLED(cublasLtMatmulDescDestroy)
NOT_CALLED(cublasLtMatmulDescSetAttribute)
NOT_CALLED(cublasLtMatrixLayoutCreate)
NOT_CALLED(cublasLtMatrixLayoutDestroy)
NOT_CALLED(cublasLtMatmulPreferenceCreate)
NOT_CALLED(cublasLtMatmulPreferenceDestroy)
NOT_CALLED(cublasLtMatmulPreferenceSetAttribute)
NOT_CALLED(cublasLtMatmulAlgoGetHeuristic)
NOT_CALLED(cublasLtMatmul)
}
