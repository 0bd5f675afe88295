// Unicode 16.0 as written out by tests/tools/text/make_unicode_table.py; codepoint_set.h and letter_case.h ask it.
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

/// Characters with the numeric type Digit that are no decimal digits (category Nd), and those with a numeric value that
/// are of none of the categories N.
extern const std::array<CodepointRange, 20> kOtherDigits;
extern const std::array<CodepointRange, 82> kOtherNumerics;

}  // namespace dspack::runtime
