#include "runtime/text/class_map.h"

#include <algorithm>
#include <map>
#include <string>

#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxClasses = 256;

/// Code points at which membership in any of the sets can change, ascending from 0.
std::vector<uint32_t> segment_starts(std::span<const CodepointSet> sets) {
  std::vector<uint32_t> starts = {0, '\n', '\n' + 1};
  for (const CodepointSet& set : sets) {
    for (const CodepointRange& range : set.ranges()) {
      starts.push_back(range.first);
      if (range.last < kLastCodepoint) starts.push_back(range.last + 1);
    }
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  return starts;
}

/// Key of the sets that contain `codepoint`.
std::string signature(std::span<const CodepointSet> sets, uint32_t codepoint) {
  std::string key(sets.size(), '0');
  for (size_t i = 0; i < sets.size(); ++i) {
    if (sets[i].contains(codepoint)) key[i] = '1';
  }
  return key;
}

}  // namespace

Result<ClassMap> ClassMap::build(std::span<const CodepointSet> sets) {
  ClassMap map;
  map.members_.resize(sets.size());
  const std::vector<uint32_t> starts = segment_starts(sets);
  std::vector<uint8_t> classes;
  std::map<std::string, uint8_t> known;
  const auto add_class = [&](const std::string& key, size_t number) {
    for (size_t i = 0; i < sets.size(); ++i) {
      if (key[i] == '1') map.members_[i].set(number);
    }
    return static_cast<uint8_t>(number);
  };
  size_t next = 0;
  for (const uint32_t start : starts) {
    const std::string key = signature(sets, start);
    if (start == '\n') {
      classes.push_back(add_class(key, '\n'));
      continue;
    }
    const auto [entry, added] = known.try_emplace(key, 0);
    if (added) {
      if (next == '\n') ++next;
      if (next == kMaxClasses) {
        return Error{ErrorKind::unsupported, "a pattern that distinguishes more than 256 kinds of characters"};
      }
      entry->second = add_class(key, next++);
    }
    classes.push_back(entry->second);
  }
  map.fill_pages(starts, classes);
  return map;
}

void ClassMap::fill_pages(std::span<const uint32_t> starts, std::span<const uint8_t> classes) {
  std::map<Page, uint16_t> known;
  size_t segment = 0;
  Page page{};
  for (uint32_t number = 0; number < page_of_.size(); ++number) {
    for (uint32_t low = 0; low < page.size(); ++low) {
      const uint32_t codepoint = (number << kPageBits) | low;
      if (segment + 1 < starts.size() && starts[segment + 1] == codepoint) ++segment;
      page[low] = classes[segment];
    }
    const auto [entry, added] = known.try_emplace(page, static_cast<uint16_t>(pages_.size()));
    if (added) pages_.push_back(page);
    page_of_[number] = entry->second;
  }
}

void ClassMap::map(std::string_view text, std::vector<uint8_t>& classes, std::vector<uint32_t>& offsets) const {
  offsets.clear();
  classes.resize(text.size());
  size_t at = 0;
  const Page& ascii = pages_[page_of_[0]];
  for (; at < text.size() && static_cast<unsigned char>(text[at]) < 0x80; ++at)
    classes[at] = ascii[static_cast<unsigned char>(text[at])];
  if (at == text.size()) return;
  offsets.resize(text.size() + 1);
  for (size_t i = 0; i < at; ++i)
    offsets[i] = static_cast<uint32_t>(i);
  size_t count = at;
  while (at < text.size()) {
    offsets[count] = static_cast<uint32_t>(at);
    const std::string_view character = text.substr(at, utf8_length(text[at]));
    classes[count++] = class_of(decode_utf8_character(character));
    at += character.size();
  }
  classes.resize(count);
  offsets.resize(count + 1);
  offsets[count] = static_cast<uint32_t>(text.size());
}

}  // namespace dspack::runtime
