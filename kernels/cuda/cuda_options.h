// What a CUDA device is made with. Threads: plain values.
#pragma once

#include <cstdint>

#include "kernels/precision.h"

namespace dspack::kernels {

struct CudaOptions {
  unsigned index = 0;  // among the devices that the driver shows
  Precision precision = Precision::exact;
  uint64_t vram_bytes = 0;  // that it may allocate; 0: what the card has
};

}  // namespace dspack::kernels
