#include "runtime/text/call_cursor.h"

#include <algorithm>

namespace dspack::runtime {

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kReplySpace);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kReplySpace) - first + 1);
}

void CallCursor::skip_space() {
  at_ = std::min(text_.find_first_not_of(kReplySpace, at_), text_.size());
}

CallCursor::Step CallCursor::take_mark(std::string_view mark) {
  size_t found = 0;
  return take_any({&mark, 1}, found);
}

CallCursor::Step CallCursor::take_any(std::span<const std::string_view> marks, size_t& found) {
  bool may_come = false;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (rest().starts_with(marks[i])) {
      found = i;
      at_ += marks[i].size();
      return Step::taken;
    }
    may_come |= marks[i].starts_with(rest());
  }
  return may_come ? Step::undecided : Step::missing;
}

CallCursor::Step CallCursor::take_until(std::string_view end, size_t most, std::string_view& between) {
  const size_t found = text_.find(end, std::max(at_, searched_));
  const bool has_found = found != std::string_view::npos;
  if ((has_found ? found : text_.size()) - at_ > most) return Step::missing;
  if (!has_found) {
    searched_ = std::max(at_, text_.size() - std::min(text_.size(), end.size() - 1));
    return Step::undecided;
  }
  between = text_.substr(at_, found - at_);
  at_ = found + end.size();
  searched_ = at_;
  return Step::taken;
}

size_t begun_mark(std::string_view text, std::span<const std::string_view> marks) {
  size_t longest = 0;
  for (const std::string_view mark : marks) {
    for (size_t length = std::min(mark.size() - 1, text.size()); length > longest; --length)
      if (text.ends_with(mark.substr(0, length))) longest = length;
  }
  return longest;
}

}  // namespace dspack::runtime
