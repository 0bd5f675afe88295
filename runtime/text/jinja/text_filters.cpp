#include "runtime/text/jinja/text_filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {

Result<Value> indent(const Value& value, const Arguments& args, Heap& heap) {
  if (value.text() == nullptr) return invalid(fmt::format("indent: not a str but {}", value.type()));
  const std::string& text = *value.text();
  const Value* width = args.get(0, "width");
  const std::string* mark = width == nullptr ? nullptr : width->text();
  uint64_t spaces = 0;
  if (mark == nullptr) {
    constexpr int64_t kMostIndent = 1000;
    TRY_ASSIGN(const int64_t count, args.integer(0, "width", 4));
    spaces = static_cast<uint64_t>(std::clamp<int64_t>(count, 0, kMostIndent));
  }
  const bool first = args.truth(1, "first", false);
  const bool blank = args.truth(2, "blank", false);
  TextBuilder out(heap.budget());
  std::string_view rest = text;
  for (bool is_first = true;; is_first = false) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    if (is_first ? first : (blank || !line.empty())) TRY(mark != nullptr ? out.add(*mark) : out.add(spaces, ' '));
    TRY(out.add(line));
    if (end == std::string_view::npos) break;
    TRY(out.add("\n"));
    rest.remove_prefix(end + 1);
  }
  return heap.text(std::move(out));
}

Result<Value> title(const Value& value, Heap& heap) {
  const auto is_between = [](std::string_view unit) {
    return std::string_view("-({[<").find(unit) != std::string_view::npos ||
           is_python_space(decode_utf8_character(unit));
  };
  TRY_ASSIGN(const Value text, as_text(value, heap));
  TRY(heap.budget().step(1 + text.text()->size() / 8));
  TextBuilder out(heap.budget());
  for (std::string_view rest = *text.text(); !rest.empty();) {
    const std::string_view first = first_character(rest);
    size_t end = first.size();
    if (is_between(first)) {
      TRY(out.add(first));
      rest.remove_prefix(end);
      continue;
    }
    while (end < rest.size() && !is_between(first_character(rest.substr(end))))
      end += first_character(rest.substr(end)).size();
    TRY(out.add(upper_case(first)));
    TRY_ASSIGN(const Charge charge, heap.budget().hold(kMostCaseGrowth * end));
    TRY(out.add(lower_case(rest.substr(first.size(), end - first.size()))));
    rest.remove_prefix(end);
  }
  return heap.text(std::move(out));
}

Result<Value> truncate(const Value& value, const Arguments& args, Heap& heap) {
  TRY_ASSIGN(const int64_t length, args.integer(0, "length", 255));
  const bool cuts_words = args.truth(1, "killwords", false);
  TRY_ASSIGN(const std::string_view end, args.text(2, "end", "..."));
  TRY(heap.budget().read(end.size()));
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
  TextBuilder out(heap.budget());
  TRY(out.add(kept));
  TRY(out.add(end));
  return heap.text(std::move(out));
}

Result<Value> escape(const Value& value, Heap& heap) {
  constexpr std::string_view kEscaped = "&<>\"'";
  constexpr std::array<std::string_view, 5> kEscapes = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
  TRY_ASSIGN(const Value text, as_text(value, heap));
  TextBuilder out(heap.budget());
  for (std::string_view rest = *text.text(); !rest.empty();) {
    const size_t plain = std::min(rest.find_first_of(kEscaped), rest.size());
    TRY(out.add(rest.substr(0, plain)));
    if (plain == rest.size()) break;
    TRY(out.add(kEscapes[kEscaped.find(rest[plain])]));
    rest.remove_prefix(plain + 1);
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
