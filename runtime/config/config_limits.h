// Bounds of the numbers in config.json: far above every released model, and low enough that a product of two sizes in
// bytes cannot overflow 64 bits.
// Threads: constants.
#pragma once

#include <cstdint>

namespace dspack::runtime {

inline constexpr uint32_t kMaxWidth = 1U << 20;
inline constexpr uint32_t kMaxVocab = 1U << 24;
inline constexpr uint32_t kMaxLayers = 4096;
inline constexpr uint32_t kMaxHeads = 1U << 14;
inline constexpr uint32_t kMaxExperts = 1U << 16;
inline constexpr uint32_t kMaxPositions = 1U << 26;
inline constexpr uint32_t kMaxIndexHeads = 1024;
inline constexpr uint32_t kMaxIndexDim = 1U << 16;
inline constexpr uint32_t kMaxChosen = 1U << 20;
// kernels::Rows counts in 32 bits.
inline constexpr uint64_t kMaxRowValues = 1ULL << 31;

}  // namespace dspack::runtime
