// A safetensors file for a header from a fuzzer: its length, made to fit what the header claims.
// Threads: thread-safe (pure functions).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>

#include "format/base/size.h"
#include "format/json.h"

namespace dspack::fuzz {

/// The furthest end that any tensor claims, relative to the byte buffer.
inline uint64_t claimed_bytes(std::string_view json) {
  const auto root = format::parse_json(json, format::kManifestDocument);
  uint64_t end = 0;
  if (!root || !root->is_object()) return end;
  for (const format::Json& entry : *root) {
    if (!entry.is_object() || !entry.contains("data_offsets")) continue;
    const format::Json& offsets = entry["data_offsets"];
    if (offsets.is_array() && offsets.size() == 2 && offsets[1].is_number_unsigned())
      end = std::max(end, offsets[1].get<uint64_t>());
  }
  return end;
}

/// Length, header and claimed buffer; the largest number where that overflows.
inline uint64_t claimed_file_bytes(std::string_view json) {
  return checked_add(8 + json.size(), claimed_bytes(json)).value_or(std::numeric_limits<uint64_t>::max());
}

}  // namespace dspack::fuzz
