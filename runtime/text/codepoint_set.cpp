#include "runtime/text/codepoint_set.h"

#include <algorithm>
#include <string>

#include "runtime/text/unicode.h"
#include "runtime/text/unicode_table.h"

namespace dspack::runtime {

CodepointSet::CodepointSet(std::vector<CodepointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodepointRange& a, const CodepointRange& b) { return a.first < b.first; });
  for (const CodepointRange& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

bool CodepointSet::contains(uint32_t codepoint) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), codepoint,
                                      [](uint32_t value, const CodepointRange& range) { return value < range.first; });
  return after != ranges_.begin() && codepoint <= std::prev(after)->last;
}

CodepointSet CodepointSet::operator|(const CodepointSet& other) const {
  std::vector<CodepointRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodepointSet(std::move(both));
}

CodepointSet CodepointSet::operator&(const CodepointSet& other) const {
  return ~(~*this | ~other);
}

CodepointSet CodepointSet::operator~() const {
  CodepointSet rest;
  uint32_t next = 0;
  for (const CodepointRange& range : ranges_) {
    if (range.first > next) rest.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodepoint) rest.ranges_.push_back({next, kLastCodepoint});
  return rest;
}

namespace {

constexpr uint32_t kCategoryBits = 5;

/// All categories whose name begins with `prefix`.
CodepointSet categories(std::string_view prefix) {
  std::vector<CodepointRange> ranges;
  for (size_t i = 0; i < kCategoryRuns.size(); ++i) {
    const std::string_view name = kCategoryNames[kCategoryRuns[i] & ((1U << kCategoryBits) - 1)];
    if (!name.starts_with(prefix)) continue;
    const uint32_t end = i + 1 < kCategoryRuns.size() ? kCategoryRuns[i + 1] >> kCategoryBits : kLastCodepoint + 1;
    ranges.push_back({kCategoryRuns[i] >> kCategoryBits, end - 1});
  }
  return CodepointSet(std::move(ranges));
}

}  // namespace

std::optional<CodepointSet> unicode_property(std::string_view name) {
  if (name == "Han") return CodepointSet({kHan.begin(), kHan.end()});
  if (name.empty() || name.size() > 2) return std::nullopt;
  CodepointSet set = categories(name);
  if (set.ranges().empty()) return std::nullopt;
  return set;
}

CodepointSet white_space() {
  std::vector<CodepointRange> ranges;
  for (uint32_t codepoint = 0; codepoint <= 0x3000; ++codepoint) {
    if (is_white_space(codepoint)) ranges.push_back({codepoint, codepoint});
  }
  return CodepointSet(std::move(ranges));
}

CodepointSet word_characters() {
  // Alphabetic is L, Nl, the circled and squared letters and a part of M; \w has all of M anyway.
  const CodepointSet others(
      {{0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}, {0x200c, 0x200d}});
  return categories("L") | categories("M") | categories("Nd") | categories("Nl") | categories("Pc") | others;
}

CodepointSet numeric_characters() {
  return categories("N") | CodepointSet({{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}});
}

}  // namespace dspack::runtime
