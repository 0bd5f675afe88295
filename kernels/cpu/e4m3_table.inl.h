// E4M3 by table. For the instruction set files only (see table.inl.h).
#pragma once

#include <cstdint>

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// BF16 values of the magnitudes times 2^`power`, split into low and high bytes. The code 0x7f is NaN.
struct E4m3Table {
  alignas(64) uint8_t low[128] = {};
  alignas(64) uint8_t high[128] = {};
  constexpr explicit E4m3Table(int32_t power) {
    for (uint32_t code = 0; code < 128; ++code) {
      uint32_t mantissa = code & 7U;
      uint32_t exponent = (code >> 3U) + 120 + static_cast<uint32_t>(power);  // E4M3's bias is 7, BF16's 127
      if (code >> 3U == 0 && mantissa != 0) {
        ++exponent;
        while ((mantissa & 8U) == 0) {
          mantissa <<= 1U;
          --exponent;
        }
      }
      const uint32_t bits = code == 0 ? 0 : code == 0x7f ? 0x7fc0 : exponent << 7U | (mantissa & 7U) << 4U;
      low[code] = static_cast<uint8_t>(bits & 0xffU);
      high[code] = static_cast<uint8_t>(bits >> 8U);
    }
  }
};

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
