#include "runtime/text/number_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/text/json.h"
#include "runtime/text/json_number.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kMaxRemainders = 1024;     // one rule each
constexpr size_t kMaxListedMultiples = 1000;  // between two bounds
constexpr uint64_t kMaxDivisor = uint64_t{1} << 53U;

using Ways = std::vector<std::string>;

/// A rule for each remainder of the digits read so far.
std::string multiples_rule(GrammarRules& rules, uint64_t divisor) {
  const size_t first = rules.reserve(divisor);
  const auto after = [&](uint64_t remainder, char from) {
    std::map<uint64_t, std::string> digits;
    for (char digit = from; digit <= '9'; ++digit)
      digits[(remainder * 10 + static_cast<uint64_t>(digit - '0')) % divisor] += digit;
    Ways ways;
    for (const auto& [next, all] : digits)
      ways.push_back(fmt::format("[{}] r{}", all, first + next));
    return ways;
  };
  for (uint64_t remainder = 0; remainder < divisor; ++remainder) {
    Ways ways = after(remainder, '0');
    if (remainder == 0) ways.push_back(literal(""));
    rules.add(fmt::format("r{}", first + remainder), fmt::format("{}", fmt::join(ways, " | ")));
  }
  return rules.add(fmt::format("\"0\" | \"-\"? {}", alternatives(after(0, '1'))));
}

/// The multiples between two bounds that are close together; nullopt: too many, none, or a bound is missing.
std::optional<std::string> listed_multiples(const NumberBounds& bounds, uint64_t divisor) {
  constexpr int64_t kFarthest = int64_t{1} << 60U;
  const auto whole = [](const std::optional<NumberBound>& bound) -> std::optional<int64_t> {
    int64_t value = 0;
    if (!bound) return std::nullopt;
    const char* const last = bound->value.data() + bound->value.size();
    const auto [end, error] = std::from_chars(bound->value.data(), last, value);
    if (error != std::errc() || end != last || value > kFarthest || value < -kFarthest) return std::nullopt;
    return value;
  };
  const auto least = whole(bounds.least);
  const auto most = whole(bounds.most);
  if (!least || !most || divisor > static_cast<uint64_t>(kFarthest)) return std::nullopt;
  const auto step = static_cast<int64_t>(divisor);
  const int64_t low = *least + (bounds.least->is_exclusive ? 1 : 0);
  const int64_t high = *most - (bounds.most->is_exclusive ? 1 : 0);
  Ways ways;
  for (int64_t value = low + (((-low) % step) + step) % step; value <= high; value += step) {
    if (ways.size() == kMaxListedMultiples) return std::nullopt;
    ways.push_back(literal(fmt::format("{}", value)));
  }
  if (ways.empty()) return std::nullopt;
  return alternatives(ways);
}

Result<void> tighten(std::optional<NumberBound>& bound, NumberBound other, bool is_least) {
  if (bound) {
    TRY_ASSIGN(const bool is_above, is_smaller(bound->value, other.value));
    TRY_ASSIGN(const bool is_below, is_smaller(other.value, bound->value));
    if (is_least ? is_below : is_above) return {};
    if (!is_above && !is_below) other.is_exclusive = other.is_exclusive || bound->is_exclusive;
  }
  bound = std::move(other);
  return {};
}

struct Bound {
  const char* keyword;
  bool is_exclusive, is_least;
};
constexpr std::array<Bound, 4> kBounds = {Bound{"minimum", false, true}, Bound{"exclusiveMinimum", true, true},
                                          Bound{"maximum", false, false}, Bound{"exclusiveMaximum", true, false}};

Result<void> tighten_all(NumberBounds& bounds, const OrderedJson& schema) {
  for (const Bound& each : kBounds) {
    const OrderedJson* found = find_keyword(schema, each.keyword);
    if (found == nullptr) continue;
    TRY(tighten(each.is_least ? bounds.least : bounds.most,
                {.value = python_json(*found, true), .is_exclusive = each.is_exclusive}, each.is_least));
  }
  return {};
}

Result<bool> are_empty(const NumberBounds& bounds) {
  if (!bounds.least || !bounds.most) return false;
  TRY_ASSIGN(const bool is_below, is_smaller(bounds.most->value, bounds.least->value));
  TRY_ASSIGN(const bool is_above, is_smaller(bounds.least->value, bounds.most->value));
  return is_below || (!is_above && (bounds.least->is_exclusive || bounds.most->is_exclusive));
}

std::optional<uint64_t> whole_divisor(const OrderedJson& given) {
  if (given.is_number_unsigned()) return std::min(given.get<uint64_t>(), kMaxDivisor);
  const double value = given.is_number_float() ? given.get<double>() : 0.5;
  if (value < 1 || value > static_cast<double>(kMaxDivisor)) return std::nullopt;
  const auto whole = static_cast<uint64_t>(value);
  return static_cast<double>(whole) == value ? std::optional(whole) : std::nullopt;
}

}  // namespace

Result<std::optional<std::string>> number_rule(GrammarRules& rules, const SchemaList& all, bool are_whole) {
  NumberBounds bounds{.are_whole = are_whole};
  uint64_t divisor = 1;
  for (const OrderedJson* each : all) {
    TRY(tighten_all(bounds, *each));
    const OrderedJson* given = find_keyword(*each, "multipleOf");
    const auto whole = given == nullptr ? std::nullopt : whole_divisor(*given);
    if (!whole) continue;
    bounds.are_whole = true;
    const uint64_t others = divisor / std::gcd(divisor, *whole);
    if (others <= kMaxDivisor / *whole) divisor = others * *whole;
  }
  TRY_ASSIGN(const bool is_nothing, are_empty(bounds));
  if (is_nothing) return std::optional<std::string>();
  TRY_ASSIGN(const std::string expression, json_number(bounds));
  if (divisor > 1 && (bounds.least || bounds.most)) {
    if (auto listed = listed_multiples(bounds, divisor)) return listed;
  } else if (divisor > 1 && divisor <= kMaxRemainders) {
    return std::optional(multiples_rule(rules, divisor));
  }
  const bool are_all = !bounds.least && !bounds.most && !bounds.are_whole;
  return std::optional(are_all ? rules.number() : rules.add(regex(expression)));
}

}  // namespace dspack::runtime
