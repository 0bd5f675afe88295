#include "runtime/text/jinja/text_search.h"

#include <algorithm>

namespace dspack::runtime::jinja {
namespace {

// The two-way algorithm (Crochemore and Perrin, "Two-way string-matching", Journal of the ACM 38, 1991): no extra
// memory, and at most two comparisons per letter of the text.

/// The position where a pattern is split, and the period of its right part.
struct Cut {
  size_t at;
  size_t period;
};

/// The greatest suffix under an order of letters.
template <class Letters, class Less>
Cut greatest_suffix(Letters pattern, size_t size, Less less) {
  size_t begin = 0;      // start of the greatest suffix so far
  size_t candidate = 1;  // start of the next candidate
  size_t same = 0;       // equal letters of both so far, within one period
  size_t period = 1;
  while (candidate + same < size) {
    const char ours = pattern[static_cast<std::ptrdiff_t>(begin + same)];
    const char others = pattern[static_cast<std::ptrdiff_t>(candidate + same)];
    if (less(others, ours)) {
      candidate += same + 1;
      same = 0;
      period = candidate - begin;
    } else if (less(ours, others)) {
      begin = candidate;
      ++candidate;
      same = 0;
      period = 1;
    } else if (same + 1 == period) {
      candidate += period;
      same = 0;
    } else {
      ++same;
    }
  }
  return {begin, period};
}

/// The first offset of the pattern, which is not empty; npos: none.
template <class Letters>
size_t two_way(Letters text, size_t text_size, Letters pattern, size_t size) {
  if (size > text_size) return std::string_view::npos;
  const auto at = [](Letters letters, size_t place) { return letters[static_cast<std::ptrdiff_t>(place)]; };
  const Cut up = greatest_suffix(pattern, size, [](char a, char b) { return a < b; });
  const Cut down = greatest_suffix(pattern, size, [](char a, char b) { return a > b; });
  const auto [cut, of_right] = up.at > down.at ? up : down;
  const auto offset = static_cast<std::ptrdiff_t>(of_right);
  const bool is_periodic =
      cut + of_right <= size && std::equal(pattern, pattern + static_cast<std::ptrdiff_t>(cut), pattern + offset);
  const size_t period = is_periodic ? of_right : std::max(cut, size - cut) + 1;
  size_t known = 0;  // letters at the front that are known to match
  for (size_t place = 0; place + size <= text_size;) {
    size_t right = std::max(cut, known);
    while (right < size && at(pattern, right) == at(text, place + right))
      ++right;
    if (right < size) {
      place += right - cut + 1;
      known = 0;
      continue;
    }
    size_t left = cut;
    while (left > known && at(pattern, left - 1) == at(text, place + left - 1))
      --left;
    if (left <= known) return place;
    place += period;
    known = is_periodic ? size - period : 0;
  }
  return std::string_view::npos;
}

}  // namespace

Result<size_t> find_first(std::string_view text, std::string_view part, Budget& budget) {
  if (part.empty()) return size_t{0};
  TRY(budget.read(part.size() <= text.size() ? part.size() : 0));
  const size_t found =
      part.size() == 1 ? text.find(part.front()) : two_way(text.begin(), text.size(), part.begin(), part.size());
  TRY(budget.read(std::min(found, text.size())));
  return found;
}

Result<size_t> find_last(std::string_view text, std::string_view part, Budget& budget) {
  if (part.empty()) return text.size();
  TRY(budget.read(part.size() <= text.size() ? part.size() : 0));
  const size_t found = two_way(text.rbegin(), text.size(), part.rbegin(), part.size());
  TRY(budget.read(std::min(found, text.size())));
  return found == std::string_view::npos ? found : text.size() - part.size() - found;
}

}  // namespace dspack::runtime::jinja
