// How a device computes: named, so that every figure can say which it is. Threads: pure functions.
#pragma once

#include <optional>
#include <string_view>

namespace dspack::kernels {

enum class Precision {
  exact,  // FP32 activations, accumulation and latent cache; the contract of ops.h
  bf16,   // activations rounded to BF16 where they meet weights or the cache; tensor cores, FP32 accumulation
  fp8,    // as bf16, and activations first rounded to E4M3 with one scale for each 128, as DeepSeek's own code does
};

[[nodiscard]] constexpr std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::exact: return "exact";
    case Precision::bf16: return "bf16";
    case Precision::fp8: return "fp8";
  }
  return "";
}

[[nodiscard]] constexpr std::optional<Precision> parse_precision(std::string_view name) {
  for (const Precision precision : {Precision::exact, Precision::bf16, Precision::fp8}) {
    if (name == to_string(precision)) return precision;
  }
  return std::nullopt;
}

}  // namespace dspack::kernels
