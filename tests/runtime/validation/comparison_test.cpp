// The arithmetic of comparing: against sums done by hand, and what departs first.
#include "runtime/validation/comparison.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace dspack::runtime::comparison_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

ErrorSums sums_of(const std::vector<double>& got, const std::vector<double>& wanted) {
  ErrorSums sums;
  sums.add(got, wanted);
  return sums;
}

ComparedModule compared(std::string name, double input_error, double output_error) {
  ComparedModule found;
  found.module = std::move(name);
  found.rows = 1;
  found.input = sums_of({1 + input_error}, {1});
  found.output = sums_of({1 + output_error}, {1});
  found.input_tolerance = found.output_tolerance = 0.01;
  return found;
}

TEST_CASE("comparison: errors are relative to the reference") {
  ErrorSums sums = sums_of({1, -2, 3}, {1, -4, 5});
  CHECK(sums.relative() == doctest::Approx(4.0 / 10));
  CHECK(sums.nmse() == doctest::Approx(8.0 / 42));
  CHECK(sums.largest == 2);
  sums.add(std::vector<double>{0, 10}, std::vector<double>{0, 0});  // a second piece of the same tensor
  CHECK(sums.relative() == doctest::Approx(14.0 / 10));
  CHECK(sums.values == 5);
  CHECK(sums_of({0, 0}, {0, 0}).relative() == 0);
  CHECK(sums_of({0, 1}, {0, 0}).relative() == kInfinity);
}

TEST_CASE("comparison: what is no number agrees with its like alone") {
  CHECK(sums_of({kNan, 1}, {kNan, 1}).relative() == 0);
  CHECK(sums_of({-kInfinity, 1}, {-kInfinity, 1}).relative() == 0);
  for (const double other : {kInfinity, kNan, 0.0}) {
    CHECK(sums_of({other, 1}, {-kInfinity, 1}).relative() == kInfinity);
    CHECK(sums_of({-kInfinity, 1}, {other, 1}).relative() == kInfinity);
  }
  ErrorSums other_rows;
  other_rows.other_rows = true;
  CHECK(other_rows.relative() == kInfinity);
}

TEST_CASE("comparison: divergence of logits is that of their distributions") {
  LogitAgreement agreement;
  const std::vector<double> p = {0.5, 0.25, 0.25};
  const std::vector<double> q = {0.25, 0.5, 0.25};
  const auto logits = [](const std::vector<double>& of, double shift) {
    std::vector<double> values;
    for (const double x : of)
      values.push_back(std::log(x) + shift);
    return values;
  };
  agreement.add(logits(q, 3), logits(p, -200));  // a constant added to all logits changes nothing
  CHECK(agreement.divergence == doctest::Approx(0.25 * std::log(2.0)));
  CHECK(agreement.same_top == 0);
  agreement.add(logits(p, 0), logits(p, 5));
  CHECK(agreement.divergence == doctest::Approx(0.25 * std::log(2.0)));
  CHECK(agreement.largest_divergence == doctest::Approx(0.25 * std::log(2.0)));
  CHECK(agreement.same_top == 1);
  CHECK(agreement.rows == 2);
  LogitAgreement excluded;  // a token that the reference excludes has no share
  excluded.add(std::vector<double>{0, 0}, std::vector<double>{0, -kInfinity});
  CHECK(excluded.divergence == doctest::Approx(std::log(2.0)));
}

TEST_CASE("comparison: the first output beyond the tolerance departs, else the first input") {
  Comparison comparison;
  comparison.modules = {compared("a", 0, 0.005), compared("b", 0.5, 0.005), compared("c", 0, 0.5),
                        compared("d", 0.5, 0.5)};
  REQUIRE(comparison.first_departure() != nullptr);
  CHECK(comparison.first_departure()->module == "c");
  CHECK_FALSE(comparison.within_tolerance());
  CHECK(report_text(comparison)
            .find("first to depart: c: relative error 5.00e-01, tolerance 1.00e-02; its input "
                  "agrees (0)\n") != std::string::npos);
  comparison.modules.erase(comparison.modules.begin() + 2);
  CHECK(comparison.first_departure()->module == "d");
  CHECK(report_text(comparison)
            .find("departs as well (5.00e-01): the error arises after b, which agrees, and before this\n") !=
        std::string::npos);
  comparison.modules.pop_back();
  CHECK(comparison.first_departure()->module == "b");
  CHECK(report_text(comparison).find("first to depart: b, by its input") != std::string::npos);
  comparison.modules.pop_back();
  CHECK(comparison.within_tolerance());
  CHECK(report_text(comparison).find("all 1 modules agree") != std::string::npos);
  comparison.only_in_reference = {{.name = "x", .reason = "why", .departs = false}};
  CHECK(comparison.within_tolerance());
  comparison.only_in_reference[0].departs = true;
  CHECK_FALSE(comparison.within_tolerance());
}

TEST_CASE("comparison: NaN exceeds every tolerance, and the report is JSON all the same") {
  Comparison comparison;
  comparison.modules = {compared("a", 0, kNan)};
  comparison.modules[0].output_tolerance = 1e9;
  CHECK_FALSE(comparison.within_tolerance());
  const format::Json json = report_json(comparison);
  CHECK(json["first_departure"] == "a");
  CHECK(json["arises_within"] == "a");
  CHECK(json["modules"][0]["output"]["relative_error"].is_null());
}

}  // namespace
}  // namespace dspack::runtime::comparison_test
