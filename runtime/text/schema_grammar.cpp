#include "runtime/text/schema_grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "format/base/foreign_text.h"
#include "runtime/text/grammar_rules.h"
#include "runtime/text/json.h"
#include "runtime/text/json_number.h"
#include "runtime/text/json_pattern.h"
#include "runtime/text/string_formats.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kMostRemainders = 1024;     // of "multipleOf": as many rules
constexpr size_t kMostListedMultiples = 1000;  // between two bounds
constexpr size_t kMostStates = 4000;           // of an object's properties and how many of them are there

using Ways = std::vector<std::string>;

std::string either(const Ways& ways) {
  return fmt::format("({})", fmt::join(ways, " | "));
}

class GrammarWriter {
 public:
  explicit GrammarWriter(const OrderedJson& root) : root_(root) {}

  Result<std::string> write() {
    referred_[""] = "root";
    TRY_ASSIGN(const std::string value, write_value(root_, ""));
    return fmt::format("root ::= {}\n{}", value, rules_.text());
  }

 private:
  static Error refuse(ErrorKind kind, const std::string& place, std::string_view what) {
    return {kind, fmt::format("the schema{}: {}", place.empty() ? "" : " at " + brief(place), what)};
  }

  Result<std::string> write_value(const OrderedJson& schema, const std::string& place) {
    if (!schema.is_object() || schema.empty()) return rules_.any();
    if (schema.contains("$ref")) return write_reference(schema["$ref"].get_ref<const std::string&>(), place);
    if (schema.contains("const")) return literal(python_json(schema["const"], true));
    if (schema.contains("enum")) {
      Ways ways;
      for (const OrderedJson& value : schema["enum"])
        ways.push_back(literal(python_json(value, true)));
      return either(ways);
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(keyword)) continue;
      Ways ways;
      for (size_t i = 0; i < schema[keyword].size(); ++i) {
        TRY_ASSIGN(std::string way, write_value(schema[keyword][i], fmt::format("{}/{}/{}", place, keyword, i)));
        ways.push_back(std::move(way));
      }
      return either(ways);
    }
    if (!schema.contains("type")) return rules_.any();
    if (!schema["type"].is_array()) return write_typed(schema, schema["type"].get<std::string>(), place);
    Ways ways;
    for (const OrderedJson& type : schema["type"]) {
      TRY_ASSIGN(std::string way, write_typed(schema, type.get<std::string>(), place));
      ways.push_back(std::move(way));
    }
    return either(ways);
  }

  /// A schema that is referred to is a rule, so that it may hold itself; that it may not be itself is looked after.
  Result<std::string> write_reference(const std::string& target, const std::string& place) {
    const std::string pointer = target.substr(1);
    if (std::ranges::find(open_, pointer) != open_.end() || (pointer.empty() && depth_ == 0)) {
      return refuse(ErrorKind::invalid, place, "\"$ref\" leads to itself");
    }
    if (const auto found = referred_.find(pointer); found != referred_.end()) return found->second;
    const std::string name = fmt::format("d{}", referred_.size());
    referred_[pointer] = name;
    open_.push_back(pointer);
    const auto value = write_value(root_.at(OrderedJson::json_pointer(pointer)), pointer);
    open_.pop_back();
    TRY(value);
    rules_.add(name, *value);
    return name;
  }

  Result<std::string> write_typed(const OrderedJson& schema, const std::string& type, const std::string& place) {
    if (type == "null") return literal("null");
    if (type == "boolean") return std::string("(\"true\" | \"false\")");
    if (type == "string") return write_string(schema, place);
    if (type == "integer" || type == "number") return write_number(schema, type == "integer", place);
    // What stands within brackets may be what it stands in.
    const auto open = std::exchange(open_, {});
    ++depth_;
    auto written = type == "array" ? write_array(schema, place) : write_object(schema, place);
    --depth_;
    open_ = open;
    return written;
  }

  // Strings.

  Result<std::string> write_string(const OrderedJson& schema, const std::string& place) {
    for (const char* keyword : {"pattern", "format"}) {
      if (!schema.contains(keyword)) continue;
      const auto& text = schema[keyword].get_ref<const std::string&>();
      const auto pattern =
          keyword == std::string_view("pattern") ? std::optional<std::string_view>(text) : pattern_of_format(text);
      if (!pattern) return rules_.string();
      const auto expression = json_pattern(*pattern);
      if (!expression) return refuse(expression.error().kind, place, expression.error().message);
      return rules_.add(regex(fmt::format("\"{}\"", *expression)));
    }
    const uint64_t least = schema.value("minLength", uint64_t{0});
    if (!schema.contains("maxLength")) return rules_.string(least, std::nullopt);
    const auto most = schema["maxLength"].get<uint64_t>();
    if (least > most) return refuse(ErrorKind::invalid, place, "\"minLength\" is above \"maxLength\"");
    return rules_.string(least, most);
  }

  // Numbers.

  Result<std::string> write_number(const OrderedJson& schema, bool are_whole, const std::string& place) {
    NumberBounds bounds{.are_whole = are_whole};
    const auto tighten = [&](std::optional<NumberBound>& bound, const char* keyword, bool is_exclusive,
                             bool is_least) -> Result<void> {
      const auto found = schema.find(keyword);
      if (found == schema.end()) return {};
      NumberBound other{.value = python_json(*found, true), .is_exclusive = is_exclusive};
      if (bound) {
        TRY_ASSIGN(const bool above, is_smaller(bound->value, other.value));
        TRY_ASSIGN(const bool below, is_smaller(other.value, bound->value));
        if (is_least ? below : above) return {};
      }
      bound = std::move(other);
      return {};
    };
    const auto read = [&]() -> Result<std::string> {
      TRY(tighten(bounds.least, "minimum", false, true));
      TRY(tighten(bounds.least, "exclusiveMinimum", true, true));
      TRY(tighten(bounds.most, "maximum", false, false));
      TRY(tighten(bounds.most, "exclusiveMaximum", true, false));
      return json_number(bounds);
    };
    const auto expression = read();
    if (!expression) return refuse(expression.error().kind, place, expression.error().message);
    if (schema.contains("multipleOf")) return write_multiples(schema, bounds, place);
    return !bounds.least && !bounds.most && !are_whole ? rules_.number() : rules_.add(regex(*expression));
  }

  /// Digits are read with the remainder of what they are so far; between two bounds that are near, all are listed.
  Result<std::string> write_multiples(const OrderedJson& schema, const NumberBounds& bounds, const std::string& place) {
    const OrderedJson& given = schema["multipleOf"];
    const uint64_t divisor = given.is_number_unsigned() ? given.get<uint64_t>() : 0;
    if (divisor == 0)
      return refuse(ErrorKind::unsupported, place, "\"multipleOf\" of what is not whole cannot be held to");
    if (bounds.least || bounds.most) return list_multiples(bounds, divisor, place);
    if (divisor > kMostRemainders) {
      return refuse(ErrorKind::unsupported, place,
                    fmt::format("\"multipleOf\" above {} without near bounds cannot be held to", kMostRemainders));
    }
    const size_t first = rules_.reserve(divisor);
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
      rules_.add(fmt::format("r{}", first + remainder), fmt::format("{}", fmt::join(ways, " | ")));
    }
    return rules_.add(fmt::format("\"0\" | \"-\"? {}", either(after(0, '1'))));
  }

  Result<std::string> list_multiples(const NumberBounds& bounds, uint64_t divisor, const std::string& place) {
    const auto far = [&] {
      return refuse(ErrorKind::unsupported, place,
                    fmt::format("\"multipleOf\" beside bounds that leave more than {} numbers cannot be held to",
                                kMostListedMultiples));
    };
    const auto whole = [](const std::optional<NumberBound>& bound) -> std::optional<int64_t> {
      int64_t value = 0;
      if (!bound) return std::nullopt;
      const auto [end, error] = std::from_chars(bound->value.data(), bound->value.data() + bound->value.size(), value);
      constexpr int64_t kFarthest = int64_t{1} << 60U;
      if (error != std::errc() || end != bound->value.data() + bound->value.size() || value > kFarthest ||
          value < -kFarthest)
        return std::nullopt;
      return value;
    };
    const auto least = whole(bounds.least);
    const auto most = whole(bounds.most);
    if (!least || !most || divisor > (uint64_t{1} << 60U)) return far();
    const auto step = static_cast<int64_t>(divisor);
    const int64_t low = *least + (bounds.least->is_exclusive ? 1 : 0);
    const int64_t high = *most - (bounds.most->is_exclusive ? 1 : 0);
    Ways ways;
    for (int64_t value = low + (((-low) % step) + step) % step; value <= high; value += step) {
      if (ways.size() == kMostListedMultiples) return far();
      ways.push_back(literal(fmt::format("{}", value)));
    }
    if (ways.empty()) return refuse(ErrorKind::invalid, place, "its bounds leave no number");
    return either(ways);
  }

  // Arrays.

  Result<std::string> write_array(const OrderedJson& schema, const std::string& place) {
    Ways prefix;
    if (schema.contains("prefixItems")) {
      for (size_t i = 0; i < schema["prefixItems"].size(); ++i) {
        TRY_ASSIGN(std::string item, write_value(schema["prefixItems"][i], fmt::format("{}/prefixItems/{}", place, i)));
        prefix.push_back(std::move(item));
      }
    }
    const uint64_t least = schema.value("minItems", uint64_t{0});
    std::optional<uint64_t> most;
    if (schema.contains("maxItems")) most = schema["maxItems"].get<uint64_t>();
    std::optional<std::string> item;
    if (!schema.contains("items") || schema["items"] != false) {
      TRY_ASSIGN(item, write_value(schema.contains("items") ? schema["items"] : OrderedJson(true), place + "/items"));
    } else {
      most = std::min<uint64_t>(most.value_or(prefix.size()), prefix.size());
    }
    if (most && least > *most) return refuse(ErrorKind::invalid, place, "\"minItems\" is above what an array can have");
    const std::string end = fmt::format("{} \"]\"", rules_.space());
    // From the end: what follows `i` items.
    std::string follows;
    if (item && (!most || *most > prefix.size())) {
      const uint64_t lo = least > prefix.size() ? least - prefix.size() : 0;
      const auto hi = most ? std::optional(*most - prefix.size()) : std::nullopt;
      const auto next = fmt::format("({} {})", rules_.comma(), *item);
      if (!prefix.empty()) {
        follows = rules_.add(fmt::format("{} {}", repeated(next, lo, hi), end));
      } else {
        const auto more = hi ? std::optional(*hi - 1) : std::nullopt;
        follows = fmt::format("{} {} {}", *item, repeated(next, lo == 0 ? 0 : lo - 1, more), end);
        if (lo == 0) follows = fmt::format("({} | \"]\")", follows);
      }
    } else {
      follows = prefix.empty() ? "\"]\"" : end;
    }
    for (size_t i = prefix.size(); i-- > 0;) {
      const std::string close = i == 0 ? "\"]\"" : end;
      if (most && i >= *most) {
        follows = close;
        continue;
      }
      const std::string next = fmt::format("{} {} {}", i == 0 ? "" : rules_.comma(), prefix[i], follows);
      follows = rules_.add(i >= least ? fmt::format("{} | {}", close, next) : next);
    }
    return rules_.add(fmt::format("\"[\" {} {}", rules_.space(), follows));
  }

  // Objects.

  struct Properties {
    Ways pairs;  // `"name" : value`
    std::vector<bool> are_required;
    std::optional<std::string> free;  // a pair of any other name
    uint64_t least = 0;
    std::optional<uint64_t> most;
    std::map<std::pair<size_t, uint64_t>, std::optional<std::string>> rules;
  };

  std::string pair_of(std::string_view name, std::string_view value) {
    return fmt::format("{} {} \":\" {} {}", name, rules_.space(), rules_.space(), value);
  }

  Result<std::string> write_object(const OrderedJson& schema, const std::string& place) {
    Properties all;
    std::vector<std::string> names;
    const OrderedJson required = schema.value("required", OrderedJson::array());
    if (schema.contains("properties")) {
      for (const auto& [name, each] : schema["properties"].items()) {
        TRY_ASSIGN(const std::string value,
                   write_value(each, place + "/properties" + (OrderedJson::json_pointer() / name).to_string()));
        all.pairs.push_back(rules_.add(pair_of(literal(python_json(OrderedJson(name), true)), value)));
        all.are_required.push_back(std::ranges::find(required, OrderedJson(name)) != required.end());
        names.push_back(name);
      }
    }
    TRY_ASSIGN(all.free, write_free(schema, names, place));
    all.least = schema.value("minProperties", uint64_t{0});
    if (schema.contains("maxProperties")) all.most = schema["maxProperties"].get<uint64_t>();
    // Names that are free may come twice, and count once.
    const auto sure = static_cast<uint64_t>(std::ranges::count(all.are_required, true));
    if (all.free && all.least > sure + 1) {
      return refuse(ErrorKind::unsupported, place,
                    "\"minProperties\" above one where names are free cannot be held to");
    }
    if (all.pairs.size() * (all.most.value_or(std::max<uint64_t>(all.least, 1)) + 1) > kMostStates) {
      return refuse(ErrorKind::invalid, place, "too many properties for bounds on how many there are");
    }
    const auto body = follow(all, 0, 0);
    if (!body) return refuse(ErrorKind::invalid, place, "no object has as many properties as it asks for");
    return rules_.add(fmt::format("\"{{\" {} {}", rules_.space(), *body));
  }

  /// What may follow after `count` properties, of those from `at` on; nullopt: nothing. Where no number of them is too
  /// many, more than what is asked for (and than one, after which there are commas) are not told apart.
  std::optional<std::string> follow(Properties& all, size_t at, uint64_t count) {
    if (all.most && count > *all.most) return std::nullopt;
    if (!all.most) count = std::min(count, std::max<uint64_t>(all.least, 1));
    if (at == all.pairs.size()) return follow_free(all, count);
    const auto found = all.rules.find({at, count});
    if (found != all.rules.end()) return found->second;
    Ways ways;
    if (const auto rest = follow(all, at + 1, count + 1))
      ways.push_back(fmt::format("{} {} {}", count == 0 ? "" : rules_.comma(), all.pairs[at], *rest));
    if (!all.are_required[at]) {
      if (const auto rest = follow(all, at + 1, count)) ways.push_back(*rest);
    }
    std::optional<std::string> made;
    if (!ways.empty()) made = rules_.add(fmt::format("{}", fmt::join(ways, " | ")));
    all.rules[{at, count}] = made;
    return made;
  }

  std::optional<std::string> follow_free(const Properties& all, uint64_t count) {
    const std::string end = count == 0 ? "\"}\"" : fmt::format("{} \"}}\"", rules_.space());
    const uint64_t least = all.least > count ? all.least - count : 0;
    const auto most = all.most ? std::optional(*all.most - count) : std::nullopt;
    if (most && least > *most) return std::nullopt;
    if (!all.free || most == 0U) return least == 0 ? std::optional(end) : std::nullopt;
    const std::string next = fmt::format("({} {})", rules_.comma(), *all.free);
    if (count > 0) return fmt::format("{} {}", repeated(next, least, most), end);
    const auto more = most ? std::optional(*most - 1) : std::nullopt;
    const std::string some =
        fmt::format("{} {} {} \"}}\"", *all.free, repeated(next, least == 0 ? 0 : least - 1, more), rules_.space());
    return least == 0 ? fmt::format("({} | {})", end, some) : some;
  }

  /// A pair of a name that is none of `names`.
  Result<std::optional<std::string>> write_free(const OrderedJson& schema, const std::vector<std::string>& names,
                                                const std::string& place) {
    if (schema.contains("patternProperties")) {
      Ways ways;
      for (const auto& [pattern, each] : schema["patternProperties"].items()) {
        const std::string at = place + "/patternProperties" + (OrderedJson::json_pointer() / pattern).to_string();
        const auto name = json_pattern(pattern);
        if (!name) return refuse(name.error().kind, at, name.error().message);
        TRY_ASSIGN(const std::string value, write_value(each, at));
        ways.push_back(rules_.add(pair_of(rules_.add(regex(fmt::format("\"{}\"", *name))), value)));
      }
      if (ways.empty()) return std::optional<std::string>();
      return std::optional(either(ways));
    }
    const OrderedJson& free = schema["additionalProperties"];
    if (free == false) return std::optional<std::string>();
    TRY_ASSIGN(const std::string value, write_value(free, place + "/additionalProperties"));
    std::string name;
    if (schema.contains("propertyNames") && schema["propertyNames"] != true) {
      TRY_ASSIGN(name, write_value(schema["propertyNames"], place + "/propertyNames"));
    } else if (names.empty()) {
      name = rules_.string();
    } else {
      TRY_ASSIGN(name, write_other_names(names, place));
    }
    return std::optional(rules_.add(pair_of(name, value)));
  }

  /// The strings that are none of these, read letter by letter along those that begin alike. A letter is written in one
  /// way, so that no name comes in a second spelling.
  Result<std::string> write_other_names(const std::vector<std::string>& names, const std::string& place) {
    size_t characters = 0;
    std::vector<std::u32string> spelled;
    for (const std::string& name : names) {
      std::u32string letters;
      for (std::string_view rest = name; !rest.empty();) {
        const Utf8Unit unit = first_utf8_unit(rest);
        letters += static_cast<char32_t>(decode_utf8_character(rest.substr(0, unit.bytes)));
        rest.remove_prefix(unit.bytes);
      }
      characters += letters.size();
      spelled.push_back(std::move(letters));
    }
    if (characters > kMostPatternStates) {
      return refuse(ErrorKind::unsupported, place,
                    fmt::format("names that are free beside listed ones of more than {} characters cannot be held to",
                                kMostPatternStates));
    }
    std::ranges::sort(spelled);
    return rules_.add(regex(fmt::format("\"{}\"", other_than(spelled, 0))));
  }

  /// What follows the first `at` letters, which all of these begin with.
  static std::string other_than(std::span<const std::u32string> names, size_t at) {
    static const std::string any = *json_character(~CodepointSet());
    CodepointSet next;
    Ways ways;
    const bool may_end = names.empty() || names.front().size() != at;
    for (size_t i = 0; i < names.size();) {
      if (names[i].size() == at) {
        ++i;
        continue;
      }
      const auto letter = static_cast<uint32_t>(names[i][at]);
      size_t end = i;
      while (end < names.size() && names[end].size() > at && names[end][at] == names[i][at])
        ++end;
      next = next | CodepointSet::of(letter);
      if (const auto text = json_character(CodepointSet::of(letter)))
        ways.push_back(*text + other_than(names.subspan(i, end - i), at + 1));
      i = end;
    }
    if (const auto others = json_character(~next)) ways.push_back(fmt::format("{}{}*", *others, any));
    return fmt::format("(?:{}){}", fmt::join(ways, "|"), may_end ? "{0,1}" : "");
  }

  const OrderedJson& root_;
  GrammarRules rules_;
  std::map<std::string, std::string> referred_;  // the rules of schemas, by their places
  std::vector<std::string> open_;                // references that led here, with nothing read since
  size_t depth_ = 0;                             // of brackets around
};

}  // namespace

Result<std::string> schema_grammar(const OrderedJson& schema) {
  return GrammarWriter(schema).write();
}

}  // namespace dspack::runtime
