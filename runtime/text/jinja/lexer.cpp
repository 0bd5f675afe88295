#include "runtime/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/base/foreign_text.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {
namespace {

constexpr std::string_view kDigits = "0123456789";

bool is_name_byte(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Normalises line ends, and removes the last one, as Jinja does.
std::string normal_lines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      const size_t tag = find_tag();
      const std::string_view data = std::string_view(source_).substr(at_, tag - at_);
      if (tag == source_.size()) {
        add(TokenKind::data, std::string(data));
        break;
      }
      const char type = source_[tag + 1];
      const char mark = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      add(TokenKind::data, std::string(before_tag(data, type, mark)));
      at_ = tag + 2 + (mark == '-' || mark == '+' ? 1 : 0);
      if (type == '#') {
        TRY(skip_comment());
      } else if (type == '%' && word_is("raw")) {
        TRY(read_raw());
      } else {
        TRY(read_tag(type));
      }
    }
    add(TokenKind::end, "");
    tokens_.back().line = line();
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] size_t find_tag() const {
    for (size_t i = at_; (i = source_.find('{', i)) != std::string::npos; ++i) {
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    }
    return source_.size();
  }

  std::string_view before_tag(std::string_view data, char type, char mark) const {
    if (mark == '-') return data.substr(0, data.size() - trailing_white_space(data));
    if (mark == '+' || type == '{') return data;
    const size_t line_start = data.rfind('\n') + 1;  // 0 if there is none
    if (line_start == 0 && !line_starts_) return data;
    const std::string_view indent = data.substr(line_start);
    return leading_white_space(indent) == indent.size() ? data.substr(0, line_start) : data;
  }

  void add(TokenKind kind, std::string text) {
    if (kind == TokenKind::data && text.empty()) return;
    tokens_.push_back({kind, std::move(text), line()});
  }

  /// Counts lines up to at_; positions only grow.
  uint32_t line() {
    for (; counted_ < std::min(at_, source_.size()); ++counted_)
      line_ += source_[counted_] == '\n' ? 1 : 0;
    return line_;
  }

  Error wrong(std::string_view what) { return {ErrorKind::invalid, fmt::format("line {}: {}", line(), what)}; }

  [[nodiscard]] std::string_view rest() const {
    return std::string_view(source_).substr(std::min(at_, source_.size()));
  }

  void skip_space() { at_ += leading_white_space(rest()); }

  /// Whether the tag is {% WORD %}.
  [[nodiscard]] bool word_is(std::string_view word) const {
    std::string_view text = rest();
    text.remove_prefix(leading_white_space(text));
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    text.remove_prefix(leading_white_space(text));
    return text.starts_with("%}") || text.starts_with("-%}") || text.starts_with("+%}");
  }

  /// Takes the end of a tag, such as -%}, and the white space that it removes; false: no such end here.
  bool take_end(std::string_view end, bool trims_line) {
    const std::string_view text = rest();
    const char mark = text.empty() ? ' ' : text.front();
    const bool marked = mark == '-' || (mark == '+' && trims_line);
    if (!text.substr(marked ? 1 : 0).starts_with(end)) return false;
    at_ += end.size() + (marked ? 1 : 0);
    if (mark == '-') {
      skip_space();
    } else if (!marked && trims_line && rest().starts_with('\n')) {
      ++at_;
    }
    line_starts_ = at_ > 0 && source_[at_ - 1] == '\n';
    return true;
  }

  Result<void> skip_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return wrong("a comment is not closed");
    at_ = end;
    if (end > 0 && (source_[end - 1] == '-' || source_[end - 1] == '+')) --at_;
    take_end("#}", true);
    return {};
  }

  Result<void> read_raw() {
    skip_space();
    at_ += 3;
    skip_space();
    if (rest().starts_with('-')) {
      at_ += 3;
      skip_space();
    } else {
      at_ += rest().starts_with('+') ? 3 : 2;
    }
    line_starts_ = source_[at_ - 1] == '\n';
    const size_t begin = at_;
    for (size_t end = at_; (end = source_.find("{%", end)) != std::string::npos; end += 2) {
      const char mark = end + 2 < source_.size() ? source_[end + 2] : ' ';
      at_ = end + 2 + (mark == '-' || mark == '+' ? 1 : 0);
      if (!word_is("endraw")) continue;
      const std::string_view data = std::string_view(source_).substr(begin, end - begin);
      add(TokenKind::data, std::string(before_tag(data, '%', mark)));
      skip_space();
      at_ += 6;
      skip_space();
      take_end("%}", true);
      return {};
    }
    return wrong("a raw block is not closed");
  }

  Result<void> read_tag(char type) {
    const bool block = type == '%';
    add(block ? TokenKind::block_begin : TokenKind::variable_begin, "");
    std::string open;
    for (;;) {
      skip_space();
      if (at_ >= source_.size()) return wrong("a tag is not closed");
      if (open.empty() && take_end(block ? "%}" : "}}", block)) {
        add(block ? TokenKind::block_end : TokenKind::variable_end, "");
        return {};
      }
      TRY(read_token(open));
    }
  }

  Result<void> read_token(std::string& open) {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return read_string(c);
    if (c >= '0' && c <= '9') return read_number();
    if (is_name_byte(c)) {
      const size_t begin = at_;
      while (at_ < source_.size() && is_name_byte(source_[at_]))
        ++at_;
      add(TokenKind::name, source_.substr(begin, at_ - begin));
      return {};
    }
    constexpr std::array<std::string_view, 6> kTwo = {"**", "//", "==", "!=", "<=", ">="};
    const std::string_view two = rest().substr(0, 2);
    const bool is_two = std::ranges::find(kTwo, two) != kTwo.end();
    if (!is_two && std::string_view("+-*/%~<>=()[]{}.,:|;").find(c) == std::string_view::npos) {
      return wrong(fmt::format("unexpected character {}", quote(std::string_view(&c, 1))));
    }
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return wrong(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    at_ += is_two ? 2 : 1;
    add(TokenKind::sign, is_two ? std::string(two) : std::string(1, c));
    return {};
  }

  Result<void> read_number() {
    const size_t begin = at_;
    const auto digits = [this](std::string_view allowed) {
      const size_t from = at_;
      while (at_ < source_.size() && (allowed.find(source_[at_]) != std::string_view::npos ||
                                      (source_[at_] == '_' && at_ + 1 < source_.size() &&
                                       allowed.find(source_[at_ + 1]) != std::string_view::npos)))
        ++at_;
      return at_ > from;
    };
    bool real = false;
    const std::string_view text = rest();
    const char base = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : ' ';
    if (base == 'x' || base == 'b' || base == 'o') {
      at_ += 2;
      if (!digits(base == 'x' ? "0123456789abcdefABCDEF" : base == 'b' ? "01" : "01234567")) return wrong("bad number");
    } else {
      digits(kDigits);
      const auto is_digit = [this](size_t at) {
        return at < source_.size() && kDigits.find(source_[at]) != kDigits.npos;
      };
      if (rest().starts_with('.') && is_digit(at_ + 1)) {
        ++at_;
        real = digits(kDigits);
      }
      if (rest().starts_with('e') || rest().starts_with('E')) {
        const size_t sign = at_ + 1 < source_.size() && (source_[at_ + 1] == '+' || source_[at_ + 1] == '-') ? 1 : 0;
        if (is_digit(at_ + 1 + sign)) {
          at_ += 1 + sign;
          real = digits(kDigits);
        }
      }
    }
    std::string number = source_.substr(begin, at_ - begin);
    std::erase(number, '_');
    add(real ? TokenKind::real : TokenKind::integer, std::move(number));
    return {};
  }

  Result<void> read_string(char mark) {
    std::string text;
    for (++at_; at_ < source_.size(); ++at_) {
      const char c = source_[at_];
      if (c == mark) {
        ++at_;
        add(TokenKind::string, std::move(text));
        return {};
      }
      if (c != '\\') {
        text += c;
        continue;
      }
      if (++at_ >= source_.size()) break;
      TRY(read_escape(text));
    }
    return wrong("a string is not closed");
  }

  /// Begins at the character after the backslash; leaves the escape's last character for the caller to skip.
  Result<void> read_escape(std::string& text) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[at_];
    if (const size_t letter = kLetters.find(c); letter != std::string_view::npos) {
      text += kMeanings[letter];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return read_code(text, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t count = 0;
      for (; count < 3 && at_ + count < source_.size() && source_[at_ + count] >= '0' && source_[at_ + count] <= '7';
           ++count)
        code = code * 8 + static_cast<uint32_t>(source_[at_ + count] - '0');
      at_ += count - 1;
      append_utf8(text, code);
    } else if (c != '\n') {
      text += '\\';
      text += c;
    }
    return {};
  }

  Result<void> read_code(std::string& text, size_t digits) {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      constexpr std::string_view kHex = "0123456789abcdef";
      const char c = ++at_ < source_.size() ? source_[at_] : ' ';
      const size_t digit = kHex.find(c >= 'A' && c <= 'F' ? static_cast<char>(c | 0x20) : c);
      if (digit == std::string_view::npos) return wrong("an escape of a string is cut");
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return wrong("an escape is no character");
    append_utf8(text, code);
    return {};
  }

  std::string source_;
  size_t at_ = 0;
  size_t counted_ = 0;
  uint32_t line_ = 1;
  bool line_starts_ = true;  // whether the text after the last tag begins a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return Error{ErrorKind::budget, fmt::format("a chat template can have at most {} bytes", kMaxTemplateBytes)};
  }
  return Lexer(normal_lines(to_valid_utf8(source))).run();
}

}  // namespace dspack::runtime::jinja
