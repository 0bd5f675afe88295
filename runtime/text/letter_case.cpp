#include "runtime/text/letter_case.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/text/case_table.h"
#include "runtime/text/codepoint_set.h"
#include "runtime/text/unicode.h"
#include "runtime/text/unicode_table.h"

namespace dspack::runtime {
namespace {

CodepointSet set_of(std::initializer_list<const char*> categories, std::span<const CodepointRange> others) {
  CodepointSet set(std::vector<CodepointRange>(others.begin(), others.end()));
  for (const char* category : categories)
    set = set | unicode_property(category).value_or(CodepointSet());
  return set;
}

bool is_upper(uint32_t codepoint) {
  static const CodepointSet kSet = set_of({"Lu"}, kOtherUppercase);
  return kSet.contains(codepoint);
}

bool is_lower(uint32_t codepoint) {
  static const CodepointSet kSet = set_of({"Ll"}, kOtherLowercase);
  return kSet.contains(codepoint);
}

bool is_title(uint32_t codepoint) {
  static const CodepointSet kSet = set_of({"Lt"}, {});
  return kSet.contains(codepoint);
}

bool is_cased(uint32_t codepoint) {
  return is_upper(codepoint) || is_lower(codepoint) || is_title(codepoint);
}

bool is_case_ignorable(uint32_t codepoint) {
  static const CodepointSet kSet = set_of({"Mn", "Me", "Cf", "Lm", "Sk"}, kOtherCaseIgnorable);
  return kSet.contains(codepoint);
}

uint32_t by_runs(std::span<const CaseRun> runs, uint32_t codepoint) {
  const auto run = std::ranges::lower_bound(runs, codepoint, {}, &CaseRun::last);
  if (run == runs.end() || codepoint < run->first || (codepoint - run->first) % run->step != 0) return codepoint;
  return static_cast<uint32_t>(static_cast<int32_t>(codepoint) + run->offset);
}

/// False: `texts` does not have the character.
bool append_text(std::string& out, std::span<const CaseText> texts, uint32_t codepoint) {
  const auto text = std::ranges::lower_bound(texts, codepoint, {}, &CaseText::codepoint);
  if (text == texts.end() || text->codepoint != codepoint) return false;
  for (const uint32_t each : text->text)
    if (each != 0) append_utf8(out, each);
  return true;
}

void append_upper(std::string& out, uint32_t codepoint) {
  if (!append_text(out, kUpperTexts, codepoint)) append_utf8(out, by_runs(kUpperRuns, codepoint));
}

void append_title(std::string& out, uint32_t codepoint) {
  if (!append_text(out, kTitleTexts, codepoint)) append_upper(out, codepoint);
}

/// Iterates over a text: characters, and bytes that are none.
class Characters {
 public:
  explicit Characters(std::string_view text) : rest_(text) {}
  [[nodiscard]] bool next() {
    if (rest_.empty()) return false;
    const Utf8Unit unit = first_utf8_unit(rest_);
    bytes_ = rest_.substr(0, unit.bytes);
    is_character_ = unit.kind == Utf8Unit::Kind::character;
    codepoint_ = is_character_ ? decode_utf8_character(bytes_) : kReplaced;
    rest_.remove_prefix(unit.bytes);
    return true;
  }
  [[nodiscard]] uint32_t codepoint() const { return codepoint_; }
  [[nodiscard]] bool is_character() const { return is_character_; }
  [[nodiscard]] std::string_view bytes() const { return bytes_; }
  /// The text after the current character.
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  static constexpr uint32_t kReplaced = 0xFFFD;  // has no case
  std::string_view rest_;
  std::string_view bytes_;
  uint32_t codepoint_ = 0;
  bool is_character_ = false;
};

/// Whether the first character that is not case-ignorable is cased.
bool begins_cased(std::string_view text) {
  Characters characters(text);
  while (characters.next())
    if (!is_case_ignorable(characters.codepoint())) return is_cased(characters.codepoint());
  return false;
}

/// The context of a character.
struct CasingContext {
  bool is_first = true;
  bool after_cased = false;    // the previous character is cased
  bool word_is_cased = false;  // the last one before it that is not case-ignorable is cased
  std::string_view rest = {};  // the text after it
};

void append_lower(std::string& out, uint32_t codepoint, const CasingContext& place) {
  constexpr uint32_t kCapitalSigma = 0x3A3, kFinalSigma = 0x3C2;
  // Final_Sigma of the Unicode Standard, 3.13: a cased letter before, none after, ignoring case-ignorable ones between.
  const bool is_final = codepoint == kCapitalSigma && place.word_is_cased && !begins_cased(place.rest);
  if (is_final) return append_utf8(out, kFinalSigma);
  if (!append_text(out, kLowerTexts, codepoint)) append_utf8(out, by_runs(kLowerRuns, codepoint));
}

/// Calls `append(out, codepoint, place)` for each character.
template <class Append>
std::string mapped(std::string_view text, Append append) {
  std::string out;
  out.reserve(text.size());
  CasingContext place;
  for (Characters characters(text); characters.next();) {
    const uint32_t codepoint = characters.codepoint();
    place.rest = characters.rest();
    if (characters.is_character())
      append(out, codepoint, place);
    else
      out += characters.bytes();
    place.is_first = false;
    place.after_cased = is_cased(codepoint);
    if (!is_case_ignorable(codepoint)) place.word_is_cased = place.after_cased;
  }
  return out;
}

/// Whether a character is `wanted` and none is `other` or titlecase.
bool all_of_case(std::string_view text, bool (*wanted)(uint32_t), bool (*other)(uint32_t)) {
  bool any = false;
  for (Characters characters(text); characters.next();) {
    if (other(characters.codepoint()) || is_title(characters.codepoint())) return false;
    any = any || wanted(characters.codepoint());
  }
  return any;
}

}  // namespace

std::string upper_case(std::string_view text) {
  return mapped(text, [](std::string& out, uint32_t codepoint, const CasingContext&) { append_upper(out, codepoint); });
}

std::string lower_case(std::string_view text) {
  return mapped(text, &append_lower);
}

std::string swapped_case(std::string_view text) {
  return mapped(text, [](std::string& out, uint32_t codepoint, const CasingContext& place) {
    if (is_upper(codepoint)) return append_lower(out, codepoint, place);
    if (is_lower(codepoint)) return append_upper(out, codepoint);
    append_utf8(out, codepoint);
  });
}

std::string title_case(std::string_view text) {
  return mapped(text, [](std::string& out, uint32_t codepoint, const CasingContext& place) {
    place.after_cased ? append_lower(out, codepoint, place) : append_title(out, codepoint);
  });
}

std::string capitalized(std::string_view text) {
  return mapped(text, [](std::string& out, uint32_t codepoint, const CasingContext& place) {
    place.is_first ? append_title(out, codepoint) : append_lower(out, codepoint, place);
  });
}

bool is_upper_case(std::string_view text) {
  return all_of_case(text, &is_upper, &is_lower);
}

bool is_lower_case(std::string_view text) {
  return all_of_case(text, &is_lower, &is_upper);
}

bool is_title_case(std::string_view text) {
  bool any = false;
  bool in_word = false;
  for (Characters characters(text); characters.next();) {
    const bool begins = is_upper(characters.codepoint()) || is_title(characters.codepoint());
    const bool goes_on = is_lower(characters.codepoint());
    if (begins ? in_word : goes_on && !in_word) return false;
    in_word = begins || goes_on;
    any = any || in_word;
  }
  return any;
}

bool is_decimal(uint32_t codepoint) {
  static const CodepointSet kSet = set_of({"Nd"}, {});
  return kSet.contains(codepoint);
}

bool is_digit(uint32_t codepoint) {
  static const CodepointSet kSet = set_of({"Nd"}, kOtherDigits);
  return kSet.contains(codepoint);
}

bool is_numeric(uint32_t codepoint) {
  static const CodepointSet kSet = set_of({"N"}, kOtherNumerics);
  return kSet.contains(codepoint);
}

}  // namespace dspack::runtime
