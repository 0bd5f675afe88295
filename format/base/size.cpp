#include "format/base/size.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

namespace dspack {
namespace {

constexpr std::pair<std::string_view, uint64_t> kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"KiB", 1ULL << 10},
    {"MiB", 1ULL << 20},
    {"GiB", 1ULL << 30},
    {"TiB", 1ULL << 40},
    {"K", 1ULL << 10},
    {"M", 1ULL << 20},
    {"G", 1ULL << 30},
    {"T", 1ULL << 40},
};

Error invalid(std::string_view text, std::string_view reason) {
  return {ErrorKind::invalid, std::string("\"").append(text).append("\" ").append(reason)};
}

/// Removes a decimal point and its digits from the front of `text`; returns them as millionths. nullopt: no point, or
/// not one to six digits after it.
std::optional<uint64_t> read_millionths(std::string_view& text) {
  constexpr size_t kMaxDigits = 6;
  if (!text.starts_with('.')) return std::nullopt;
  uint64_t millionths = 0;
  size_t digits = 0;
  for (; digits + 1 < text.size() && text[digits + 1] >= '0' && text[digits + 1] <= '9'; ++digits) {
    if (digits < kMaxDigits) millionths = millionths * 10 + static_cast<uint64_t>(text[digits + 1] - '0');
  }
  if (digits < 1 || digits > kMaxDigits) return std::nullopt;
  for (size_t i = digits; i < kMaxDigits; ++i)
    millionths *= 10;
  text.remove_prefix(digits + 1);
  return millionths;
}

}  // namespace

std::optional<uint64_t> parse_decimal(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<uint64_t> parse_size(std::string_view text) {
  constexpr std::string_view kWrong =
      "is no size; write a whole number of bytes, or a number with a unit: KB, MB, GB, TB, KiB, MiB, GiB, TiB, K, M, "
      "G or T";
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return invalid(text, "is more than any disk holds");
  if (error != std::errc()) return invalid(text, kWrong);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  const std::optional<uint64_t> millionths = read_millionths(unit);
  for (const auto& [name, bytes] : kUnits) {
    const bool same = std::equal(unit.begin(), unit.end(), name.begin(), name.end(),
                                 [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
    if (!same || (millionths && bytes == 1)) continue;  // a byte has no fraction
    const std::optional<uint64_t> whole = checked_mul(number, bytes);
    constexpr uint64_t kMillion = 1'000'000;
    const uint64_t part = millionths.value_or(0) * bytes / kMillion;  // below 2^20 times 2^40
    if (!whole || *whole > UINT64_MAX - part) return invalid(text, "is more than any disk holds");
    return *whole + part;
  }
  return invalid(text, kWrong);
}

std::string size_words(uint64_t bytes) {
  constexpr std::string_view kNames[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return std::to_string(bytes) + " B";
  size_t name = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 999.5; value /= 1000)
    ++name;
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::array<char, 16> digits{};
  const auto [end, error] =
      std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed, decimals);
  DSPACK_CHECK(error == std::errc(), "three digits have room");
  return std::string(digits.data(), end).append(" ").append(kNames[name]);
}

std::string exact_size_words(uint64_t bytes) {
  const std::string exact = std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  return bytes < 1000 ? exact : size_words(bytes) + " (" + exact + ")";
}

}  // namespace dspack
