// How exactly a device computes. Every published speed names its mode.
// Threads: pure functions. Errors: none.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace dspack::kernels {

enum class Precision {
  exact,  // the contract of ops.h
  split,  // GPU only: as exact, but attention over a BF16 cache multiplies BF16 terms of FP32 values on tensor cores
  bf16,   // inputs of products are rounded to BF16 for tensor cores or the CPU's equivalent
  fp8,    // GPU only: as bf16, but E4M3 with a scale per block for inputs of FP8 weights; the latent cache too
  amx,    // CPUs with AMX tiles only: as bf16, summed in the order of the tiles
  int8,   // CPU only: as bf16, but eight bits with a scale per 32 values for inputs of integer weights
};

inline constexpr std::array<std::string_view, 6> kPrecisionNames = {"exact", "split", "bf16", "fp8", "amx", "int8"};

[[nodiscard]] constexpr std::string_view to_string(Precision precision) {
  return kPrecisionNames.at(static_cast<size_t>(precision));
}

[[nodiscard]] constexpr std::optional<Precision> parse_precision(std::string_view name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i) {
    if (kPrecisionNames.at(i) == name) return static_cast<Precision>(i);
  }
  return std::nullopt;
}

/// The precision of everything but attention over the latent cache.
[[nodiscard]] constexpr Precision besides_attention(Precision precision) {
  return precision == Precision::split ? Precision::exact : precision;
}

}  // namespace dspack::kernels
