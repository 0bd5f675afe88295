// Unicode 16.0 as written out by tests/tools/text/make_unicode_table.py; codepoint_set.h asks it.
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

}  // namespace dspack::runtime
