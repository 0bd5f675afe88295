// What a CUDA device is made with. Free of CUDA's headers.
// Threads: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/precision.h"

namespace dspack::kernels {

struct CudaOptions {
  unsigned index = 0;  // of the GPUs that the driver shows
  Precision precision = Precision::exact;
  uint64_t vram_bytes = 0;  // that the device's buffers may take together; 0: no limit but the card's
  // libcublasLt, for products of many rows in precisions bf16 and fp8. Empty: where the system's loader finds it;
  // kNoCublasLt: none.
  std::string cublaslt = {};
};
inline constexpr char kNoCublasLt[] = "off";

}  // namespace dspack::kernels
