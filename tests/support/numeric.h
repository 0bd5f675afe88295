// Error statistics with names: how far a result is from its reference, and where it is farthest.
// Threads: thread-safe (pure functions). Errors: none; a length mismatch shows as `count_mismatch`.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>

namespace dspack::test {

/// Unit roundoff of FP32: one rounding changes a value by at most this, relatively.
inline constexpr double kRoundoff = 0x1p-24;

struct ErrorReport {
  bool count_mismatch = false;
  size_t not_a_number = 0;  // NaN in the result where the reference has none, or the other way round
  double nmse = 0;          // sum of squared errors / sum of squared references
  double largest = 0;       // absolute error
  size_t row = 0;           // where the largest error is
  size_t col = 0;
  double got = 0;
  double wanted = 0;
};

inline std::ostream& operator<<(std::ostream& out, const ErrorReport& report) {
  return out << "nmse " << report.nmse << ", largest error " << report.largest << " at row " << report.row << " col "
             << report.col << " (got " << report.got << ", wanted " << report.wanted << "), NaN mismatches "
             << report.not_a_number << (report.count_mismatch ? ", LENGTHS DIFFER" : "");
}

/// Compares value by value; `cols` turns an index into a row and a column.
inline ErrorReport compare(std::span<const float> got, std::span<const double> wanted, size_t cols) {
  ErrorReport report;
  report.count_mismatch = got.size() != wanted.size();
  double error_squares = 0;
  double reference_squares = 0;
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    if (std::isnan(got[i]) || std::isnan(wanted[i])) {
      report.not_a_number += std::isnan(got[i]) != std::isnan(wanted[i]) ? 1 : 0;
      continue;
    }
    const double error = std::abs(static_cast<double>(got[i]) - wanted[i]);
    error_squares += error * error;
    reference_squares += wanted[i] * wanted[i];
    if (error <= report.largest) continue;
    report.largest = error;
    report.row = i / cols;
    report.col = i % cols;
    report.got = got[i];
    report.wanted = wanted[i];
  }
  if (error_squares > 0) report.nmse = error_squares / reference_squares;
  return report;
}

/// The number of values whose error exceeds their own bound.
inline size_t beyond_bound(std::span<const float> got, std::span<const double> wanted, std::span<const double> bound) {
  size_t count = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    count += std::abs(static_cast<double>(got[i]) - wanted[i]) <= bound[i] ? 0 : 1;
  }
  return count;
}

/// The first index at which the bits differ, or the length if none does.
inline size_t first_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return i;
  }
  return a.size();
}

}  // namespace dspack::test
