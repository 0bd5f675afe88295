#include "runtime/text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace dspack::runtime {

// The longest stop string that `text` ends with.
std::optional<size_t> StopStrings::longest_ending(std::string_view text) const {
  std::optional<size_t> longest;
  for (size_t i = 0; i < strings_.size(); ++i) {
    if (text.ends_with(strings_[i]) && (!longest || strings_[i].size() > strings_[*longest].size())) longest = i;
  }
  return longest;
}

// Number of bytes at the end of `text` that may begin a stop string.
size_t StopStrings::longest_begun(std::string_view text) const {
  size_t longest = 0;
  for (const std::string& string : strings_) {
    for (size_t size = std::min(string.size() - 1, text.size()); size > longest; --size) {
      if (text.ends_with(std::string_view(string).substr(0, size))) longest = size;
    }
  }
  return longest;
}

std::string StopStrings::push(std::string_view text) {
  if (found_) return {};
  size_t end = held_.size();
  held_ += text;
  while (end < held_.size()) {
    found_ = longest_ending(std::string_view(held_).substr(0, ++end));
    if (!found_) continue;
    held_.resize(end - strings_[*found_].size());
    return std::exchange(held_, {});
  }
  std::string certain = held_.substr(0, held_.size() - longest_begun(held_));
  held_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() {
  found_.reset();
  return std::exchange(held_, {});
}

}  // namespace dspack::runtime
