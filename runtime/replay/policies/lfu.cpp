#include "runtime/replay/policies/lfu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/experts/policy/recency_order.h"

namespace dspack::runtime {

namespace {

// Passes. Published ageing is of this order: hot experts of a text change over hundreds of tokens.
constexpr double kHalfLife = 64;

// 2^a + 2^b, as a power of 2.
double add(double a, double b) {
  const double high = std::max(a, b);
  return std::isinf(high) ? high : high + std::log2(1 + std::exp2(std::min(a, b) - high));
}

}  // namespace

double& LfuPolicy::count_of(ExpertKey key) {
  return counts_.try_emplace(packed(key), -std::numeric_limits<double>::infinity()).first->second;
}

void LfuPolicy::count(const ExpertUse& use) {
  if (use.is_draft) return;
  const double at = static_cast<double>(use.pass) - use.last_row;
  const double rows = std::min<double>(use.rows, kHalfLife);
  double& sum = count_of(use.key);
  sum = add(sum, at / kHalfLife + std::log2(rows));
}

void LfuPolicy::hit(const ExpertUse& use) {
  in_slots_.erase({count_of(use.key), use.key});
  count(use);
  in_slots_.insert({count_of(use.key), use.key});
}

void LfuPolicy::inserted(const ExpertUse& use) {
  count(use);
  in_slots_.insert({count_of(use.key), use.key});
}

void LfuPolicy::prefetched(ExpertKey key, uint64_t pass) {
  inserted({.key = key, .pass = pass});
}

void LfuPolicy::removed(ExpertKey key) {
  in_slots_.erase({count_of(key), key});
}

std::optional<ExpertKey> LfuPolicy::victim(const std::function<bool(ExpertKey)>& may_go) {
  for (const auto& [sum, key] : in_slots_) {
    if (may_go(key)) return key;
  }
  return std::nullopt;
}

}  // namespace dspack::runtime
