#include "format/base/size_text.h"

#include <charconv>
#include <string>
#include <utility>

#include "format/base/checked.h"

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
};

Error invalid(std::string_view text, std::string_view reason) {
  return {ErrorKind::invalid, std::string("\"").append(text).append("\" ").append(reason)};
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
  constexpr std::string_view kWrong =
      "is no size; write a whole number of bytes, or one with a unit: KB, MB, GB, TB, KiB, MiB, GiB, TiB";
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return invalid(text, "is more than any disk holds");
  if (error != std::errc()) return invalid(text, kWrong);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const auto& [name, bytes] : kUnits) {
    if (unit != name) continue;
    const std::optional<uint64_t> size = checked_mul(number, bytes);
    if (!size) return invalid(text, "is more than any disk holds");
    return *size;
  }
  return invalid(text, kWrong);
}

}  // namespace dspack
