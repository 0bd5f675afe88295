#include "runtime/text/json_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <vector>

#include "runtime/text/json_pattern.h"

namespace dspack::runtime {
namespace {

/// A number's digits before and after the point; at least "0" before it, no redundant zeros.
struct Decimal {
  bool is_negative = false;
  std::string whole = "0";
  std::string fraction;
  [[nodiscard]] bool is_zero() const { return whole == "0" && fraction.empty(); }
};

Result<Decimal> read_decimal(std::string_view text) {
  const auto wrong = [&] {
    return invalid(fmt::format("a bound that is no number or has more than {} digits", kMaxDigits));
  };
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.is_negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t mark = text.find_first_of("eE"); mark != std::string_view::npos) {
    std::string_view digits = text.substr(mark + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (error != std::errc() || end != digits.data() + digits.size()) return wrong();
    text = text.substr(0, mark);
  }
  const size_t point = text.find('.');
  std::string whole(text.substr(0, point));
  std::string fraction(point == std::string_view::npos ? "" : text.substr(point + 1));
  const auto are_digits = [](std::string_view all) {
    return all.find_first_not_of("0123456789") == std::string_view::npos;
  };
  constexpr int kLimit = 400;  // beyond the range of 64-bit floating point
  if (whole.empty() || !are_digits(whole) || !are_digits(fraction) || whole.size() > kLimit ||
      fraction.size() > kLimit || exponent > kLimit || exponent < -kLimit)
    return wrong();
  for (; exponent > 0; --exponent) {
    whole += fraction.empty() ? '0' : fraction.front();
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), whole.back());
    whole.pop_back();
    if (whole.empty()) whole = "0";
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size() - 1));
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (fraction.size() > kMaxDigits) return wrong();
  decimal.whole = std::move(whole);
  decimal.fraction = std::move(fraction);
  decimal.is_negative = decimal.is_negative && !decimal.is_zero();
  return decimal;
}

int compare_sizes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int whole = a.whole.compare(b.whole); whole != 0) return whole;
  return a.fraction.compare(b.fraction);
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? compare_sizes(b, a) : compare_sizes(a, b);
}

/// A bound on a number's absolute value.
struct Edge {
  Decimal size;
  bool is_exclusive = false;
};

std::string digit_class(char first, char last) {
  return first == last ? std::string(1, first) : fmt::format("[{}-{}]", first, last);
}

std::string joined(const std::vector<std::string>& ways) {
  std::string text;
  for (const std::string& way : ways)
    text += (text.empty() ? "" : "|") + way;
  return ways.size() == 1 ? text : fmt::format("(?:{})", text);
}

using Expression = std::optional<std::string>;  // nullopt: matches nothing

/// Expressions for absolute values from `least` to `most`. A value is read digit by digit; the digits so far equal the
/// beginning of one bound, of both, or of neither; then any digits may follow.
class Sizes {
 public:
  Sizes(Edge least, std::optional<Edge> most, bool are_whole)
      : least_(std::move(least)), most_(std::move(most)), are_whole_(are_whole) {}

  [[nodiscard]] Expression expression() const {
    std::vector<std::string> ways;
    const size_t longest = most_ ? most_->size.whole.size() : least_.size.whole.size() + 1;
    for (size_t length = least_.size.whole.size(); length <= longest; ++length) {
      if (!most_ && length == longest) {
        ways.push_back("[1-9]" + repeated_expression("[0-9]", length - 1, std::nullopt) + any_fraction());
        break;
      }
      const bool at_least = length == least_.size.whole.size();
      const bool at_most = most_ && length == longest;
      if (const Expression way = whole_from(0, length, at_least, at_most)) ways.push_back(*way);
    }
    if (ways.empty()) return std::nullopt;
    return joined(ways);
  }

 private:
  [[nodiscard]] std::string any_fraction() const { return are_whole_ ? "" : "(?:\\.[0-9]{1,15}){0,1}"; }

  [[nodiscard]] Expression whole_from(size_t at, size_t length, bool at_least, bool at_most) const {
    if (at == length) return after_whole(at_least, at_most);
    const bool is_first = at == 0 && length > 1;
    if (!at_least && !at_most) {
      const std::string rest =
          is_first ? fmt::format("[1-9][0-9]{{{}}}", length - 1) : fmt::format("[0-9]{{{}}}", length - at);
      return rest + any_fraction();
    }
    const char low = at_least ? least_.size.whole[at] : is_first ? '1' : '0';
    const char high = at_most ? most_->size.whole[at] : '9';
    return digit_between(low, high, at_least, at_most,
                         [&](bool least, bool most) { return whole_from(at + 1, length, least, most); });
  }

  [[nodiscard]] Expression after_whole(bool at_least, bool at_most) const {
    std::vector<std::string> ways;
    if (may_end(0, at_least, at_most)) ways.emplace_back();
    if (!are_whole_) {
      if (const Expression more = fraction_from(0, at_least, at_most)) ways.push_back("\\." + *more);
    }
    return optional_of(ways);
  }

  /// At least one digit, after `at` digits of the fraction.
  [[nodiscard]] Expression fraction_from(size_t at, bool at_least, bool at_most) const {
    if (at_least && at >= least_.size.fraction.size()) {
      // Equal to the bound so far: it is reached, or exceeded by the first nonzero digit.
      if (!at_most) return least_.is_exclusive ? "0{0,15}[1-9][0-9]{0,15}" : "[0-9]{1,15}";
    }
    if (!at_least && !at_most) return "[0-9]{1,15}";
    if (at_most && at >= most_->size.fraction.size()) {
      if (most_->is_exclusive || (at_least && least_.is_exclusive && at >= least_.size.fraction.size()))
        return std::nullopt;
      if (!at_least || at >= least_.size.fraction.size()) return "0{1,15}";
    }
    const auto digit_of = [at](const Decimal& bound) { return at < bound.fraction.size() ? bound.fraction[at] : '0'; };
    const char low = at_least ? digit_of(least_.size) : '0';
    const char high = at_most ? digit_of(most_->size) : '9';
    return digit_between(low, high, at_least, at_most, [&](bool least, bool most) -> Expression {
      std::vector<std::string> ways;
      if (may_end(at + 1, least, most)) ways.emplace_back();
      if (const Expression more = fraction_from(at + 1, least, most)) ways.push_back(*more);
      return optional_of(ways);
    });
  }

  /// Whether a number may end after `at` digits of the fraction.
  [[nodiscard]] bool may_end(size_t at, bool at_least, bool at_most) const {
    const bool is_least = at_least && at >= least_.size.fraction.size();
    if (at_least && (!is_least || least_.is_exclusive)) return false;
    const bool is_most = at_most && at >= most_->size.fraction.size();
    return !is_most || !most_->is_exclusive;
  }

  /// `ways` is empty, one expression, or "" and one.
  static Expression optional_of(const std::vector<std::string>& ways) {
    if (ways.empty()) return std::nullopt;
    if (ways.size() == 1) return ways.front();
    return fmt::format("(?:{}){{0,1}}", ways.back());
  }

  template <class After>
  static Expression digit_between(char low, char high, bool at_least, bool at_most, const After& after) {
    if (low > high) return std::nullopt;
    std::vector<std::string> ways;
    const auto add = [&](char first, char last, bool least, bool most) {
      if (first > last) return;
      if (const Expression rest = after(least, most)) ways.push_back(digit_class(first, last) + *rest);
    };
    if (low == high && (at_least || at_most)) {
      add(low, high, at_least, at_most);
    } else {
      if (at_least) add(low, low, true, false);
      add(static_cast<char>(low + (at_least ? 1 : 0)), static_cast<char>(high - (at_most ? 1 : 0)), false, false);
      if (at_most) add(high, high, false, true);
    }
    if (ways.empty()) return std::nullopt;
    return joined(ways);
  }

  Edge least_;
  std::optional<Edge> most_;
  bool are_whole_;
};

struct Limit {
  Decimal value;
  bool is_exclusive;
};

Result<std::optional<Limit>> read_limit(const std::optional<NumberBound>& bound) {
  if (!bound) return std::optional<Limit>();
  TRY_ASSIGN(Decimal value, read_decimal(bound->value));
  return std::optional(Limit{.value = std::move(value), .is_exclusive = bound->is_exclusive});
}

/// Replaces a bound beyond all numbers of kMaxDigits digits by the first number beyond them, exclusively. The bound
/// must face away from zero.
void bring_near(Limit& limit) {
  if (limit.value.whole.size() <= kMaxDigits) return;
  limit.value.whole = "1" + std::string(kMaxDigits, '0');
  limit.value.fraction.clear();
  limit.is_exclusive = true;
}

}  // namespace

Result<bool> is_smaller(std::string_view a, std::string_view b) {
  TRY_ASSIGN(const Decimal first, read_decimal(a));
  TRY_ASSIGN(const Decimal second, read_decimal(b));
  return compare(first, second) < 0;
}

Result<bool> is_multiple(std::string_view value, std::string_view divisor) {
  TRY_ASSIGN(const Decimal number, read_decimal(value));
  TRY_ASSIGN(const Decimal step, read_decimal(divisor));
  const size_t places = std::max(number.fraction.size(), step.fraction.size());
  const auto digits = [places](const Decimal& of) {
    return of.whole + of.fraction + std::string(places - of.fraction.size(), '0');
  };
  std::string all = digits(step);
  all.erase(0, all.find_first_not_of('0'));
  constexpr size_t kMaxOfDivisor = 18;  // ten times this fits 64 bits
  if (all.empty() || all.size() > kMaxOfDivisor)
    return invalid(fmt::format("a divisor that is zero or has more than {} digits", kMaxOfDivisor));
  uint64_t whole = 0;
  for (const char digit : all)
    whole = whole * 10 + static_cast<uint64_t>(digit - '0');
  uint64_t remainder = 0;
  for (const char digit : digits(number))
    remainder = (remainder * 10 + static_cast<uint64_t>(digit - '0')) % whole;
  return remainder == 0;
}

Result<std::string> json_number(const NumberBounds& bounds) {
  if (!bounds.least && !bounds.most) {
    return std::string(bounds.are_whole ? "-{0,1}(?:0|[1-9][0-9]*)"
                                        : "-{0,1}(?:0|[1-9][0-9]*)(?:\\.[0-9]+){0,1}(?:[eE][+\\-]{0,1}[0-9]+){0,1}");
  }
  TRY_ASSIGN(auto least, read_limit(bounds.least));
  TRY_ASSIGN(auto most, read_limit(bounds.most));
  if (least && least->value.is_negative) bring_near(*least);
  if (most && !most->value.is_negative) bring_near(*most);
  const auto is_far = [](const std::optional<Limit>& limit) {
    return limit && limit->value.whole.size() > kMaxDigits + 1;
  };
  if (is_far(least) || is_far(most))
    return invalid(fmt::format("a bound beyond which numbers have more than {} digits", kMaxDigits));
  std::vector<std::string> ways;
  const auto add = [&](const char* sign, const Edge& from, const std::optional<Edge>& to) {
    if (to && compare_sizes(from.size, to->size) > 0) return;
    if (const auto sizes = Sizes(from, to, bounds.are_whole).expression()) ways.push_back(sign + *sizes);
  };
  const auto edge = [](const Limit& limit) { return Edge{.size = limit.value, .is_exclusive = limit.is_exclusive}; };
  // Below zero the bounds swap, and zero itself has no sign.
  if (!least || least->value.is_negative) {
    const Edge from = most && most->value.is_negative ? edge(*most) : Edge{.size = {}, .is_exclusive = true};
    add("-", from, least ? std::optional(edge(*least)) : std::nullopt);
  }
  if (!most || !most->value.is_negative) {
    const Edge from = least && !least->value.is_negative ? edge(*least) : Edge{.size = {}, .is_exclusive = false};
    add("", from, most ? std::optional(edge(*most)) : std::nullopt);
  }
  if (ways.empty()) return invalid("its bounds leave no number");
  return joined(ways);
}

}  // namespace dspack::runtime
