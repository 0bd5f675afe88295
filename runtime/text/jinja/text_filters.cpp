#include "runtime/text/jinja/text_filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {

Result<Value> indent(const Value& value, const Arguments& args, Heap& heap) {
  if (value.text() == nullptr) return invalid(fmt::format("indent: not a str but {}", value.type()));
  const std::string& text = *value.text();
  const Value* width = args.get(0, "width");
  constexpr int64_t kMostIndent = 1000;
  std::string mark(4, ' ');
  if (width != nullptr && width->text() != nullptr) {
    mark = *width->text();
  } else if (width != nullptr) {
    TRY_ASSIGN(const int64_t count, args.integer(0, "width", 4));
    mark = std::string(static_cast<size_t>(std::clamp<int64_t>(count, 0, kMostIndent)), ' ');
  }
  const bool first = args.truth(1, "first", false);
  const bool blank = args.truth(2, "blank", false);
  std::string out;
  std::string_view rest = text;
  for (bool is_first = true;; is_first = false) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    TRY(heap.budget().produce(mark.size() + line.size() + 1));
    if (is_first ? first : (blank || !line.empty())) out += mark;
    out += line;
    if (end == std::string_view::npos) break;
    out += '\n';
    rest.remove_prefix(end + 1);
  }
  return heap.text(std::move(out));
}

Result<Value> title(const Value& value, Heap& heap) {
  const auto is_between = [](std::string_view unit) {
    return std::string_view("-({[<").find(unit) != std::string_view::npos ||
           is_python_space(decode_utf8_character(unit));
  };
  TRY_ASSIGN(const std::string text, to_text(value, heap.budget()));
  TRY(heap.budget().step(1 + text.size() / 8));
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view first = first_character(rest);
    size_t end = first.size();
    if (is_between(first)) {
      out += first;
      rest.remove_prefix(end);
      continue;
    }
    while (end < rest.size() && !is_between(first_character(rest.substr(end))))
      end += first_character(rest.substr(end)).size();
    out += upper_case(first) + lower_case(rest.substr(first.size(), end - first.size()));
    rest.remove_prefix(end);
  }
  return heap.text(std::move(out));
}

Result<Value> truncate(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const int64_t length, args.integer(0, "length", 255));
  const bool cuts_words = args.truth(1, "killwords", false);
  TRY_ASSIGN(const std::string end, args.text(2, "end", "..."));
  const Value* given = args.get(3, "leeway");
  constexpr int64_t kLeeway = 5;
  int64_t leeway = kLeeway;
  if (given != nullptr && !given->is_none()) {
    TRY_ASSIGN(leeway, args.integer(3, "leeway", kLeeway));
  }
  const int64_t end_length = count_characters(end);
  if (length < end_length) return invalid(fmt::format("expected length >= {}, got {}", end_length, length));
  if (leeway < 0) return invalid(fmt::format("expected leeway >= 0, got {}", leeway));
  TRY_ASSIGN(const int64_t size, length_of(value, heap));
  if (size <= length || size - length <= leeway) return value;
  if (value.text() == nullptr) return invalid(fmt::format("truncate: not a str but {}", value.type()));
  size_t bytes = 0;
  for (int64_t i = 0; i < length - end_length; ++i)
    bytes += utf8_length((*value.text())[bytes]);
  std::string_view kept = std::string_view(*value.text()).substr(0, bytes);
  if (!cuts_words) kept = kept.substr(0, kept.rfind(' '));
  return heap.text(std::string(kept) + end);
}

Result<Value> escape(const Value& value, Heap& heap) {
  TRY_ASSIGN(const std::string text, to_text(value, heap.budget()));
  std::string out;
  for (const char c : text) {
    TRY(heap.budget().produce(5));
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&#34;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += c;
  }
  return heap.text(std::move(out));
}

int64_t count_words(std::string_view text) {
  int64_t count = 0;
  bool inside = false;
  for (; !text.empty(); text.remove_prefix(first_character(text).size())) {
    const std::string_view unit = first_character(text);
    const bool of_word = unit == "_" || is_letter_or_number(unit);
    count += of_word && !inside ? 1 : 0;
    inside = of_word;
  }
  return count;
}

}  // namespace dspack::runtime::jinja
