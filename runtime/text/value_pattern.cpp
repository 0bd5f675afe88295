#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/text/value_pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <string>

#include "runtime/text/json.h"
#include "runtime/text/json_pattern.h"

namespace dspack::runtime {
namespace {

constexpr uint32_t kMaxMatchKilobytes = 20'000;
constexpr std::string_view kSpaces = "\\t-\\r \\xA0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000\\uFEFF";

/// The pattern in PCRE2's syntax with its options for ECMA-262. Errors: constructs that PCRE2 would read differently.
Result<std::string> translated(std::string_view pattern) {
  const auto refuse = [](std::string_view what) {
    return Error{ErrorKind::unsupported, fmt::format("a pattern with {} cannot be held to", what)};
  };
  std::string text;
  bool is_in_class = false;
  bool has_quantifier = false;  // a quantifier comes directly before
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view rest = pattern.substr(i);
    const bool had_quantifier = has_quantifier;
    has_quantifier = false;
    if (c == '\\') {
      constexpr std::string_view kSame = "dDwWbBnrtfv0123456789xupP^$\\.*+?()[]{}|/-";
      const char escaped = i + 1 < pattern.size() ? pattern[++i] : '\0';
      if (escaped == 's') {
        text += is_in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
      } else if (escaped == 'S' && !is_in_class) {
        text += fmt::format("[^{}]", kSpaces);
      } else if (escaped != '\0' && kSame.find(escaped) != std::string_view::npos) {
        text += {'\\', escaped};
      } else {
        return refuse(fmt::format("\"\\{}\"", escaped >= ' ' && escaped <= '~' ? std::string(1, escaped) : "..."));
      }
      continue;
    }
    if (is_in_class) {
      if (rest.starts_with("[:") || rest.starts_with("[.") || rest.starts_with("[=")) return refuse("\"[:\"");
      is_in_class = c != ']';
    } else if (c == '[') {
      is_in_class = true;
    } else if (c == '(') {
      constexpr std::string_view kGroups[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!"};
      bool is_known = !rest.starts_with("(?") && !rest.starts_with("(*");
      for (const std::string_view group : kGroups)
        is_known = is_known || rest.starts_with(group);
      if (!is_known) return refuse("this kind of group");
    } else if (c == '*' || c == '+' || c == '?' || c == '}') {
      if (had_quantifier && c != '?') return refuse("a quantifier of a quantifier");
      has_quantifier = !had_quantifier;
    }
    text += c;
  }
  return text;
}

}  // namespace

void ValuePattern::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Result<ValuePattern::Code> ValuePattern::compiled(std::string_view expression, uint32_t options) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) return Error{ErrorKind::budget, "no memory for a pattern"};
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_ANYCRLF);
  pcre2_set_compile_extra_options(context.get(), PCRE2_EXTRA_ALT_BSUX);
  options |= PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY | PCRE2_MATCH_UNSET_BACKREF |
             PCRE2_ALLOW_EMPTY_CLASS | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t place = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), options, &error, &place,
                          context.get()));
  if (code == nullptr)
    return Error{ErrorKind::invalid, fmt::format("a pattern that is not understood (PCRE2's error {})", error)};
  return code;
}

Result<ValuePattern> ValuePattern::compile(std::string_view pattern) {
  const auto of_text = json_pattern(pattern);
  if (!of_text && of_text.error().kind != ErrorKind::unsupported) return of_text.error();
  if (of_text) {
    auto code = compiled(*of_text, PCRE2_ENDANCHORED);
    if (code) return ValuePattern(*std::move(code), true);
    // The ranges of a character property may be more than PCRE2 has room for.
  }
  TRY_ASSIGN(const std::string expression, translated(pattern));
  TRY(compiled(expression, 0));
  // Anchored, so that PCRE2 makes one attempt, which searches by itself: its step limit is per attempt.
  TRY_ASSIGN(Code code, compiled(fmt::format("(?s:.)*?(?:{})", expression), 0));
  return ValuePattern(std::move(code), false);
}

Result<bool> ValuePattern::is_in(std::string_view value, uint32_t most_steps) const {
  std::string text;
  if (is_of_text_) {
    text = python_json(OrderedJson(value), true);
    value = std::string_view(text).substr(1, text.size() - 2);
  }
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  if (data == nullptr || context == nullptr) return Error{ErrorKind::budget, "no memory for a pattern"};
  pcre2_set_match_limit(context.get(), most_steps);
  pcre2_set_heap_limit(context.get(), kMaxMatchKilobytes);
  const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(value.data()), value.size(), 0, 0, data.get(),
                                context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return Error{ErrorKind::budget, fmt::format("a pattern that takes too long on a text of {} bytes", value.size())};
}

}  // namespace dspack::runtime
