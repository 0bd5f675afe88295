// Sizes as people write them: "5GB", "512MiB", "4096".
// Threads: thread-safe (pure functions).
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "format/base/checked.h"

namespace dspack {

/// A whole number of bytes, with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024) behind it, upper or
/// lower case. nullopt: anything else, zero, or more than 64 bits hold.
[[nodiscard]] inline std::optional<uint64_t> parse_byte_size(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number == 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (unit.empty() || unit == "B" || unit == "b") return number;
  constexpr std::string_view kPrefixes = "kmgt";
  const size_t power = kPrefixes.find(static_cast<char>(unit.front() | 0x20));
  if (power == std::string_view::npos) return std::nullopt;
  unit.remove_prefix(1);
  const bool binary = unit.starts_with('i') || unit.starts_with('I');
  if (binary) unit.remove_prefix(1);
  if (unit != "B" && unit != "b") return std::nullopt;
  std::optional<uint64_t> bytes = number;
  for (size_t i = 0; i <= power && bytes; ++i)
    bytes = checked_mul(*bytes, binary ? 1024 : 1000);
  return bytes;
}

}  // namespace dspack
