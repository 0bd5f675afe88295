#include "runtime/budget/memory_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "format/base/size.h"

namespace dspack::runtime {

namespace {

Result<Amount> parse_share(std::string_view text) {
  double percent = 0;
  const char* const end_of_number = text.data() + text.size() - 1;
  const auto [end, error] = std::from_chars(text.data(), end_of_number, percent, std::chars_format::fixed);
  if (error == std::errc() && end == end_of_number && percent > 0 && percent <= 100) {
    return Amount{.number = 0, .percent = percent};
  }
  return Error{ErrorKind::invalid, fmt::format("\"{}\" is no share; it is above 0% and at most 100%", text)};
}

}  // namespace

uint64_t Amount::of(uint64_t whole) const {
  if (!percent) return number;
  if (*percent >= 100) return whole;
  // Exact below 2^53; above, a share of an exabyte is not meant to the byte.
  return static_cast<uint64_t>(std::floor(static_cast<double>(whole) * *percent / 100));
}

Result<Amount> parse_memory_amount(std::string_view text) {
  if (text.ends_with('%')) return parse_share(text);
  TRY_ASSIGN(const uint64_t bytes, parse_size(text));
  return Amount{.number = bytes, .percent = std::nullopt};
}

Result<Amount> parse_expert_amount(std::string_view text) {
  if (text.ends_with('%')) return parse_share(text);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0) {
    return Amount{.number = number, .percent = std::nullopt};
  }
  return Error{ErrorKind::invalid,
               fmt::format("\"{}\" is no number of experts; write a whole number from 1 on, or a share as 25%", text)};
}

}  // namespace dspack::runtime
