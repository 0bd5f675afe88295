#include "runtime/generate/admission.h"

#include <doctest/doctest.h>

namespace dspack::runtime::admission_test {
namespace {

void measure(Admission& admission, uint32_t answers, uint64_t misses, uint32_t passes = Admission::kEnough) {
  for (uint32_t i = 0; i < passes; ++i)
    admission.record(answers, answers, misses);
}

TEST_CASE("admission: what was not measured is tried, and where nothing is read all begin") {
  Admission admission(4);
  for (const uint32_t answers : {0U, 1U, 2U, 3U})
    CHECK(admission.admits(answers));
  for (const uint32_t answers : {1U, 2U, 3U, 4U})
    measure(admission, answers, 0);
  for (const uint32_t answers : {0U, 1U, 2U, 3U})
    CHECK(admission.admits(answers));
}

TEST_CASE("admission: one answer more begins while a token misses no more experts than with one fewer") {
  Admission admission(4);
  measure(admission, 1, 100);
  measure(admission, 2, 180, Admission::kEnough - 1);
  CHECK(admission.admits(1));
  measure(admission, 2, 180, 1);
  measure(admission, 3, 300);
  CHECK(admission.misses_a_token(2) == doctest::Approx(90));
  CHECK(admission.admits(1));
  CHECK_FALSE(admission.admits(2));  // 100 a token after 90
  CHECK(admission.admits(3));        // four were not tried
  measure(admission, 2, 210, 400);
  CHECK_FALSE(admission.admits(1));  // 105 after 100
  CHECK(admission.admits(0));        // the first one always
}

TEST_CASE("admission: what was found is tried again after a while") {
  Admission admission(2);
  measure(admission, 2, 500);
  measure(admission, 1, 100);
  CHECK_FALSE(admission.admits(1));
  measure(admission, 1, 100, Admission::kTrust);
  CHECK(admission.admits(1));
  measure(admission, 2, 100);  // nothing of the past is left
  CHECK(admission.misses_a_token(2) == doctest::Approx(50));
}

}  // namespace
}  // namespace dspack::runtime::admission_test
