// Bounds on the sizes in config.json, and its other keys: those with only one runnable value, and those without effect
// on the result. Any other key that is not read is refused (ConfigFields::refuse_others). Threads: thread-safe (pure
// functions). Source: DeepSeek's and transformers' configuration classes, and the released config.json files.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "format/config_fields.h"

namespace dspack::runtime {

// Far above every released model, and low enough that a product of two sizes in bytes cannot overflow 64 bits.
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

/// Fails (unsupported) if a key asks for a computation that this program does not do. `elsewhere`: keys to skip, which
/// the model reads itself.
void refuse_other_values(format::ConfigFields& fields, std::span<const std::string_view> elsewhere);

/// Keys of a language model's configuration that do not change its logits.
[[nodiscard]] std::span<const std::string_view> keys_without_effect();

/// Keys without effect beside a "text_config", which holds the language model; most describe images.
[[nodiscard]] std::span<const std::string_view> wrapper_keys_without_effect();

}  // namespace dspack::runtime
