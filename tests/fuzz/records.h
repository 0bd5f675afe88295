// Text of a record log (format/record_log.h) from a fuzzer's input, so that what lies behind the checks is reached.
#pragma once

#include <string>
#include <string_view>

#include "format/digest.h"
#include "tests/fuzz/target.h"

namespace dspack::fuzz {

inline constexpr size_t kCheckDigits = 16;  // docs/format.md, "Journal"

/// A line that begins with '!' stands for the rest of itself; any other becomes a record with its check in front.
/// `first` begins the text unless the first line is "!". A last byte of '~' cuts the last line's end, as a kill would.
inline std::string records_text(std::string_view input, const std::string& first) {
  const bool torn = input.ends_with('~');
  if (torn) input.remove_suffix(1);
  std::string text;
  if (input.starts_with("!\n")) {
    input.remove_prefix(2);
  } else {
    text = first;
  }
  for (const std::string_view line : split(input, '\n')) {
    if (line.starts_with('!')) {
      text.append(line.substr(1)) += '\n';
    } else {
      text.append(to_hex(format::sha256(line)), 0, kCheckDigits).append(" ").append(line) += '\n';
    }
  }
  if (torn && !text.empty()) text.pop_back();
  return text;
}

}  // namespace dspack::fuzz
