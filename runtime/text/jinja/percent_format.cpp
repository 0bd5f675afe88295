#include "runtime/text/jinja/percent_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime::jinja {
namespace {

// Limit for width and precision: more padding is of no practical use.
constexpr int64_t kMaxColumns = 100'000;

/// The part between "%" and its letter.
struct Specification {
  bool left = false, plus = false, space = false, alternative = false, zero = false;
  int64_t width = 0;
  std::optional<int64_t> precision = {};
  char type = 's';
};

/// Scans a format and consumes the values.
class PercentFormat {
 public:
  PercentFormat(std::string_view format, const Value& argument, Heap& heap)
      : format_(format), argument_(argument), heap_(heap), out_(heap.budget()) {
    if (const List* list = argument.list(); list != nullptr && list->tuple) tuple_ = list;
    // Python treats a list as a mapping too; values of either may remain unused.
    may_rest_ = argument.dict() != nullptr || (argument.list() != nullptr && tuple_ == nullptr);
  }

  Result<Value> run() {
    while (at_ < format_.size()) {
      const size_t mark = std::min(format_.find('%', at_), format_.size());
      TRY(out_.add(format_.substr(at_, mark - at_)));
      at_ = mark + 1;
      if (mark < format_.size()) TRY(one());
    }
    if (!may_rest_ && used_ < (tuple_ != nullptr ? tuple_->items.size() : 1)) {
      return invalid("not all arguments converted during string formatting");
    }
    return heap_.text(std::move(out_));
  }

 private:
  [[nodiscard]] char here() const { return at_ < format_.size() ? format_[at_] : '\0'; }

  Result<Value> next_value() {
    if (tuple_ == nullptr && used_ == 0) {
      ++used_;
      return argument_;
    }
    if (tuple_ == nullptr || used_ == tuple_->items.size()) return invalid("not enough arguments for format string");
    return tuple_->items[used_++];
  }

  /// The value for "(name)".
  Result<Value> named_value() {
    size_t depth = 1;
    const size_t begin = ++at_;
    for (; at_ < format_.size() && depth > 0; ++at_) {
      if (format_[at_] == '(') ++depth;
      if (format_[at_] == ')') --depth;
    }
    if (depth > 0) return invalid("incomplete format key");
    const std::string_view name = format_.substr(begin, at_ - 1 - begin);
    if (argument_.dict() == nullptr) return invalid("format requires a mapping");
    TRY_ASSIGN(const Value key, heap_.text(name));
    TRY_ASSIGN(const Value* const found, argument_.dict()->find(key, heap_.budget()));
    if (found == nullptr) return invalid(fmt::format("the format names {}, which the mapping lacks", quote(name)));
    return *found;
  }

  /// A number in the format, or the next value for "*".
  Result<int64_t> columns() {
    int64_t number = 0;
    if (here() == '*') {
      ++at_;
      TRY_ASSIGN(const Value value, next_value());
      if (!value.integer()) return invalid("* wants int");
      number = *value.integer();
    } else {
      for (; here() >= '0' && here() <= '9' && number <= kMaxColumns; ++at_)
        number = number * 10 + (here() - '0');
    }
    if (number > kMaxColumns || number < -kMaxColumns) {
      return Error{ErrorKind::budget, fmt::format("a format has more than {} columns", kMaxColumns)};
    }
    return number;
  }

  Result<Specification> specification() {
    Specification spec;
    for (bool more = true; more; at_ += more ? 1 : 0) {
      switch (here()) {
        case '-': spec.left = true; break;
        case '+': spec.plus = true; break;
        case ' ': spec.space = true; break;
        case '#': spec.alternative = true; break;
        case '0': spec.zero = true; break;
        default: more = false;
      }
    }
    TRY_ASSIGN(spec.width, columns());
    if (spec.width < 0) spec.left = true;
    spec.width = std::abs(spec.width);
    if (here() == '.') {
      ++at_;
      TRY_ASSIGN(const int64_t precision, columns());
      spec.precision = std::max<int64_t>(precision, 0);
    }
    if (here() == 'h' || here() == 'l' || here() == 'L') ++at_;  // C's length modifiers; ignored
    if (at_ == format_.size()) return invalid("incomplete format");
    spec.type = here();
    ++at_;
    return spec;
  }

  Result<void> one() {
    std::optional<Value> named;
    if (here() == '(') {
      TRY_ASSIGN(named, named_value());
      used_ = 1;
    }
    TRY_ASSIGN(const Specification spec, specification());
    if (spec.type == '%') return out_.add("%");
    if (std::string_view("sradiuoxXeEfFgGc").find(spec.type) == std::string_view::npos) {
      return invalid(fmt::format("unsupported format character {} at index {}",
                                 quote(first_character(format_.substr(at_ - 1))), at_ - 1));
    }
    if (!named) {
      TRY_ASSIGN(named, next_value());
    }
    if (std::string_view("srac").find(spec.type) != std::string_view::npos) return text(*named, spec);
    TRY_ASSIGN(const std::string digits, std::string_view("eEfFgG").find(spec.type) != std::string_view::npos
                                             ? real(*named, spec)
                                             : whole(*named, spec));
    return padded_number(digits, spec);
  }

  Result<void> padded(std::string_view text, const Specification& spec) {
    const auto missing = static_cast<size_t>(std::max<int64_t>(spec.width - count_characters(text), 0));
    if (!spec.left) TRY(out_.add(missing, ' '));
    TRY(out_.add(text));
    return out_.add(spec.left ? missing : 0, ' ');
  }

  Result<void> text(const Value& value, const Specification& spec) {
    if (spec.type == 'c') {
      TRY_ASSIGN(const std::string text, character(value));
      return padded(text, spec);
    }
    TextBuilder made(heap_.budget());
    TRY(spec.type == 's' ? print(value, made) : print_repr(value, made));
    if (spec.type == 'a') {
      TextBuilder escaped(heap_.budget());
      TRY(ascii(made.text(), escaped));
      made = std::move(escaped);
    }
    std::string_view shown = made.text();
    if (spec.precision) {
      size_t end = 0;
      for (int64_t i = 0; i < *spec.precision && end < shown.size(); ++i)
        end += first_character(shown.substr(end)).size();
      shown = shown.substr(0, end);
    }
    return padded(shown, spec);
  }

  static Result<std::string> character(const Value& value) {
    std::string text;
    const std::string* given = value.text();
    if (given != nullptr && !given->empty() && first_character(*given).size() == given->size()) return *given;
    if (!value.integer()) return invalid("%c requires int or char");
    const int64_t codepoint = *value.integer();
    const bool is_surrogate = codepoint >= 0xD800 && codepoint < 0xE000;
    if (codepoint < 0 || codepoint > 0x10FFFF || is_surrogate) return invalid("%c arg not in range(0x110000)");
    append_utf8(text, static_cast<uint32_t>(codepoint));
    return text;
  }

  /// Python's ascii(), applied to repr()'s result.
  static Result<void> ascii(std::string_view text, TextBuilder& out) {
    for (; !text.empty(); text.remove_prefix(first_character(text).size())) {
      const std::string_view unit = first_character(text);
      const uint32_t code = unit.size() == 1 ? 0 : decode_utf8_character(unit);
      TRY(out.add(code == 0        ? std::string(unit)
                  : code < 0x100   ? fmt::format("\\x{:02x}", code)
                  : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                   : fmt::format("\\U{:08x}", code)));
    }
    return {};
  }

  /// The digits of a whole number, with "-" and the prefix for #.
  static Result<std::string> whole(const Value& value, const Specification& spec) {
    const bool is_decimal = std::string_view("diu").find(spec.type) != std::string_view::npos;
    if (!value.is_number() || (value.is_float() && !is_decimal)) {
      return invalid(fmt::format("%{} format: {} is required, not {}", spec.type,
                                 is_decimal ? "a real number" : "an integer", value.type()));
    }
    const double real = *value.real();
    if (!std::isfinite(real)) return invalid("cannot convert a number that is not finite to integer");
    const int64_t number = value.integer().value_or(0);
    const bool is_negative = value.is_float() ? real <= -1 : number < 0;
    const uint64_t size = is_negative ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    std::string digits;
    std::string_view mark;
    switch (spec.type) {
      case 'x': digits = fmt::format("{:x}", size), mark = "0x"; break;
      case 'X': digits = fmt::format("{:X}", size), mark = "0X"; break;
      case 'o': digits = fmt::format("{:o}", size), mark = "0o"; break;
      default: digits = value.is_float() ? fmt::format("{:.0f}", std::trunc(std::abs(real))) : fmt::format("{}", size);
    }
    const auto least = static_cast<size_t>(spec.precision.value_or(0));
    if (digits.size() < least) digits.insert(0, least - digits.size(), '0');
    return std::string(is_negative ? "-" : "") + std::string(spec.alternative ? mark : "") + digits;
  }

  static Result<std::string> real(const Value& value, const Specification& spec) {
    if (!value.real()) return invalid(fmt::format("must be real number, not {}", value.type()));
    const double number = *value.real();
    if (std::isnan(number)) return std::string(spec.type >= 'a' ? "nan" : "NAN");  // without a sign
    int64_t precision = spec.precision.value_or(6);
    if (spec.type == 'g' || spec.type == 'G') precision = std::max<int64_t>(precision, 1);  // as in C
    const std::string format = fmt::format("{{:{}.{{}}{}}}", spec.alternative ? "#" : "", spec.type);
    std::string text = fmt::format(fmt::runtime(format), number, static_cast<int>(precision));
    // For one significant digit fmt writes "2.0", C and Python "2.".
    const size_t point = text.find(".0");
    if (spec.alternative && precision == 1 && point != std::string::npos && (spec.type == 'g' || spec.type == 'G'))
      text.erase(point + 1, 1);
    return text;
  }

  Result<void> padded_number(std::string_view digits, const Specification& spec) {
    std::string sign;
    if (digits.starts_with('-')) {
      sign = "-";
      digits.remove_prefix(1);
    } else if (spec.plus || spec.space) {
      sign = spec.plus ? "+" : " ";
    }
    if (!spec.zero || spec.left) return padded(sign + std::string(digits), spec);
    if (spec.alternative && std::string_view("xXo").find(spec.type) != std::string_view::npos) {
      sign += digits.substr(0, 2);  // zeros follow the prefix
      digits.remove_prefix(2);
    }
    const auto size = static_cast<int64_t>(sign.size() + digits.size());
    TRY(out_.add(sign));
    TRY(out_.add(static_cast<uint64_t>(std::max<int64_t>(spec.width - size, 0)), '0'));
    return out_.add(digits);
  }

  std::string_view format_;
  const Value& argument_;
  Heap& heap_;
  const List* tuple_ = nullptr;
  bool may_rest_ = false;
  size_t used_ = 0;  // values used so far
  size_t at_ = 0;
  TextBuilder out_;
};

}  // namespace

Result<Value> format_percent(std::string_view format, const Value& argument, Heap& heap) {
  return PercentFormat(format, argument, heap).run();
}

}  // namespace dspack::runtime::jinja
