#include "runtime/validation/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "format/base/check.h"

namespace dspack::runtime {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ratio(double error, double reference) {
  if (error == 0) return 0;
  return reference == 0 ? kInfinity : error / reference;
}

// logit - log_sum_exp(logits) is the logarithm of its probability.
double log_sum_exp(std::span<const double> logits) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits)
    sum += std::exp(logit - highest);
  return highest + std::log(sum);
}

size_t likeliest(std::span<const double> logits) {
  return static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace

void ErrorSums::add(std::span<const double> got, std::span<const double> wanted) {
  DSPACK_CHECK(got.size() == wanted.size(), "values beside another number of values");
  values += got.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == wanted[i] && !std::isfinite(got[i])) continue;  // equal infinities
    if (!std::isfinite(got[i]) || !std::isfinite(wanted[i])) {
      not_a_number += std::isnan(got[i]) && std::isnan(wanted[i]) ? 0 : 1;
      continue;
    }
    const double difference = std::abs(got[i] - wanted[i]);
    error += difference;
    reference += std::abs(wanted[i]);
    error_squares += difference * difference;
    reference_squares += wanted[i] * wanted[i];
    largest = std::max(largest, difference);
  }
}

double ErrorSums::relative() const {
  return not_a_number > 0 || other_rows ? kInfinity : ratio(error, reference);
}

double ErrorSums::nmse() const {
  return not_a_number > 0 || other_rows ? kInfinity : ratio(error_squares, reference_squares);
}

void LogitAgreement::add(std::span<const double> logits, std::span<const double> wanted) {
  const double ours = log_sum_exp(logits);
  const double theirs = log_sum_exp(wanted);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double log_p = wanted[i] - theirs;
    if (log_p == -kInfinity) continue;  // 0 * log 0
    sum += std::exp(log_p) * (log_p - (logits[i] - ours));
  }
  sum = std::max(sum, 0.0);  // rounding can make the sum of equal rows negative
  ++rows;
  divergence += sum;
  largest_divergence = std::max(largest_divergence, sum);
  same_top += likeliest(logits) == likeliest(wanted) ? 1 : 0;
}

const ComparedModule* Comparison::first_departure() const {
  const auto by_output = std::ranges::find_if(modules, &ComparedModule::output_departs);
  if (by_output != modules.end()) return &*by_output;
  const auto by_input = std::ranges::find_if(modules, &ComparedModule::input_departs);
  return by_input == modules.end() ? nullptr : &*by_input;
}

bool Comparison::within_tolerance() const {
  return first_departure() == nullptr && std::ranges::none_of(only_in_reference, &NotCompared::departs);
}

double default_tolerance(Dtype dtype) {
  constexpr double kFull = 1e-4;
  constexpr double kHalf = 0.125;
  return dtype == Dtype::bf16 || dtype == Dtype::f16 ? kHalf : kFull;
}

}  // namespace dspack::runtime
