#include "runtime/text/base64.h"

#include <cstdint>

namespace dspack::runtime {

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=')
    ++padding;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool padded = i >= text.size() - padding;
    const size_t digit = padded ? 0 : kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6U) | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const unsigned shift : {16U, 8U, 0U})
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(bits >> shift)));
    bits = 0;
  }
  bytes.erase(bytes.size() - padding);
  return bytes;
}

}  // namespace dspack::runtime
