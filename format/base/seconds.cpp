#include "format/base/seconds.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace dspack {

std::string duration_words(double seconds) {
  constexpr uint64_t kMinute = 60;
  constexpr uint64_t kHour = 60 * kMinute;
  constexpr uint64_t kDay = 24 * kHour;
  constexpr double kMaxSeconds = 1e12;
  const double bounded = std::clamp(seconds, 0.0, kMaxSeconds);
  const auto whole = static_cast<uint64_t>(std::llround(bounded));
  const auto two_digits = [](uint64_t number) { return (number < 10 ? "0" : "") + std::to_string(number); };
  if (whole < kMinute) {
    const auto tenths = static_cast<uint64_t>(std::llround(bounded * 10));
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
  }
  if (whole < kHour) return std::to_string(whole / kMinute) + " min " + two_digits(whole % kMinute) + " s";
  if (whole < 2 * kDay) return std::to_string(whole / kHour) + " h " + two_digits(whole % kHour / kMinute) + " min";
  return std::to_string(whole / kDay) + " days " + std::to_string(whole % kDay / kHour) + " h";
}

}  // namespace dspack
