#include "runtime/cli/api_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "format/base/foreign_text.h"
#include "runtime/cli/prompt.h"

namespace dspack::runtime {
namespace {

/// `place`: where the key was found, for errors.
Result<std::string> checked(std::string_view text, std::string_view place) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return invalid(fmt::format("{}: the key is blank; write one there, or leave it out to need none", place));
  }
  const std::string_view key = text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
  const bool is_one_line = std::ranges::none_of(key, [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; });
  if (is_one_line) return std::string(key);
  return invalid(fmt::format("{}: more than a line, or a control character; a key is sent in a header", place));
}

}  // namespace

Result<std::string> find_api_key(const std::optional<std::string>& option) {
  if (option && option->starts_with('@')) {
    const std::string file = option->substr(1);
    TRY_ASSIGN(const std::string text, read_text_file(file));
    return checked(text, fmt::format("--api-key @{}", brief(file)));
  }
  if (option) return checked(*option, "--api-key");
  const char* const value = std::getenv(kApiKeyVariable);  // NOLINT(concurrency-mt-unsafe): main thread
  return value == nullptr ? std::string() : checked(value, kApiKeyVariable);
}

}  // namespace dspack::runtime
