// What the fuzz targets share: the entry that libFuzzer (or plain_main.cpp) calls, and the input as text. A property
// that does not hold is a mistake of ours, so targets say it with DSPACK_CHECK, which aborts.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "format/base/check.h"
#include "format/base/result.h"

/// Feeds one input to the target. Always 0; a broken property aborts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace dspack::fuzz {

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Takes the text up to `separator` (or all of it) from the front, and the separator.
inline std::string_view take(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(part.size() == text.size() ? part.size() : part.size() + 1);
  return part;
}

/// The parts between separators; none of an empty text.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty())
    parts.push_back(take(text, separator));
  return parts;
}

/// A refusal says something, and is one that input can cause.
inline void check_refusal(const Error& error) {
  DSPACK_CHECK(!error.message.empty(), "an error without a text");
  DSPACK_CHECK(error.kind == ErrorKind::invalid || error.kind == ErrorKind::corrupt ||
                   error.kind == ErrorKind::unsupported || error.kind == ErrorKind::not_found,
               error.message);
}

}  // namespace dspack::fuzz
