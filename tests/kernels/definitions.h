// What tests of operations against their definitions share: numbers that are the same in every set, errors, and whether
// every set has the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"

namespace dspack::test {

inline double nmse(const std::vector<float>& got, const Doubles& wanted) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  return error / size;
}

inline Doubles wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// What the first set that ran has computed; the others must have the same bits.
template <class T>
void check_same_on_all_sets(const std::string& what, const std::vector<T>& got) {
  static std::map<std::string, std::vector<T>> first;
  const auto [known, is_new] = first.try_emplace(what, got);
  if (!is_new) CHECK(known->second == got);
}

/// Numbers that are the same in every set.
inline std::vector<float> numbers(uint32_t seed, size_t count, float deviation = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  std::ranges::generate(values, [&] { return normal(engine); });
  return values;
}

}  // namespace dspack::test
