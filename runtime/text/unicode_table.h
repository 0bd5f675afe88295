// Unicode 16.0, and the cases of letters as Python has them, as written out by tests/tools/text/make_unicode_table.py;
// codepoint_set.h and letter_case.h ask it.
// Threads: constants.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/text/codepoint_set.h"

namespace dspack::runtime {

/// The general categories in the order of their numbers in kCategoryRuns.
inline constexpr std::array<const char*, 30> kCategoryNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

/// First code point << 5 | category; each run ends where the next begins, the last at U+10FFFF.
extern const std::array<uint32_t, 4099> kCategoryRuns;

/// The script Han, ascending.
extern const std::array<CodepointRange, 22> kHan;

/// Characters with the numeric type Digit that are no decimal digits (category Nd), and those with a numeric value that are
/// of none of the categories N.
extern const std::array<CodepointRange, 20> kOtherDigits;
extern const std::array<CodepointRange, 82> kOtherNumerics;

/// The properties Uppercase, Lowercase and Case_Ignorable beyond the categories that have them: Lu; Ll; Mn, Me, Cf, Lm, Sk.
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
