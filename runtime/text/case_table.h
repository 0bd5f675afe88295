// The cases of letters as Python has them, as written out by tests/tools/text/make_unicode_table.py; letter_case.h asks
// it. Threads: constants.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/text/codepoint_set.h"

namespace dspack::runtime {

/// The properties Uppercase, Lowercase and Case_Ignorable beyond the categories that have them: Lu; Ll; Mn, Me, Cf, Lm,
/// Sk.
extern const std::array<CodepointRange, 5> kOtherUppercase;
extern const std::array<CodepointRange, 24> kOtherLowercase;
extern const std::array<CodepointRange, 16> kOtherCaseIgnorable;

/// Every step-th character of the range becomes the one that is `offset` further.
struct CaseRun {
  uint32_t first;
  uint32_t last;
  uint32_t step;
  int32_t offset;
};
/// A character that becomes several, or another in titles than in upper case; 0: no more.
struct CaseText {
  uint32_t codepoint;
  std::array<uint32_t, 3> text;
};
/// All ascending.
extern const std::array<CaseRun, 194> kUpperRuns;
extern const std::array<CaseRun, 181> kLowerRuns;
extern const std::array<CaseText, 102> kUpperTexts;
extern const std::array<CaseText, 1> kLowerTexts;
extern const std::array<CaseText, 135> kTitleTexts;

}  // namespace dspack::runtime
