#include "format/base/near_word.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "format/base/check.h"

namespace dspack::format {
namespace {

std::string lower(std::string_view word) {
  std::string text(word);
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

// Optimal string alignment: three rows of the usual table suffice, since a swap looks two rows back.
size_t edit_distance(std::string_view a, std::string_view b) {
  DSPACK_CHECK(a.size() <= kLongestNearWord && b.size() <= kLongestNearWord, "words of a bounded length");
  using Row = std::array<size_t, kLongestNearWord + 1>;
  Row before_last{};
  Row last{};
  Row row{};
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last = last;
    last = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::optional<std::string> near_word(std::string_view typed, std::span<const std::string> words) {
  constexpr size_t kMaxSlips = 2;
  constexpr size_t kLettersASlip = 3;
  if (typed.empty() || typed.size() > kLongestNearWord) return std::nullopt;
  const std::string meant = lower(typed);
  std::optional<std::string> nearest;
  size_t least = kMaxSlips + 1;
  for (const std::string& word : words) {
    if (word.size() > kLongestNearWord) continue;
    const size_t distance = edit_distance(meant, lower(word));
    const size_t letters = std::min(typed.size(), word.size()) - (word.starts_with("--") && typed.size() > 2 ? 2 : 0);
    if (distance >= least || distance * kLettersASlip > letters) continue;
    least = distance;
    nearest = word;
  }
  constexpr size_t kBeginning = 3;
  if (nearest || typed.find_first_not_of('-') == std::string_view::npos) return nearest;
  if (typed.size() - typed.find_first_not_of('-') < kBeginning) return std::nullopt;
  for (const std::string& word : words) {
    if (!lower(word).starts_with(meant)) continue;
    if (nearest) return std::nullopt;  // ambiguous
    nearest = word;
  }
  return nearest;
}

std::string did_you_mean(std::string_view typed, std::span<const std::string> words) {
  const auto near = near_word(typed, words);
  return near ? "; did you mean " + *near + "?" : std::string();
}

}  // namespace dspack::format
