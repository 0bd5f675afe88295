#include "runtime/text/schema_validator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/json_number.h"
#include "runtime/text/string_formats.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr uint64_t kMaxSchemaSteps = 500'000;  // visited schemas and values: a tenth of a second
constexpr uint32_t kMaxNested = 400;           // nesting of schemas on the way to a value
constexpr size_t kMaxFaultBytes = 500;
// A pattern is tried with few PCRE2 steps first, which suffice for nearly all texts, and then with its full limit.
constexpr uint32_t kQuickPatternSteps = 2'000;
constexpr uint64_t kQuickPattern = 20, kLongPattern = 1'000;  // in steps of a check

bool is_numeric(const OrderedJson& value) {
  return value.is_number() || !long_number(value).empty();
}

bool is_whole(const OrderedJson& value) {
  if (value.is_number_float()) return std::trunc(value.get<double>()) == value.get<double>();
  return is_numeric(value);
}

uint64_t count_characters(std::string_view text) {
  uint64_t count = 0;
  for (; !text.empty(); ++count)
    text.remove_prefix(first_utf8_unit(text).bytes);
  return count;
}

}  // namespace

/// One check; keeps the first fault with its place within the value.
class SchemaValidator::Check {
 public:
  explicit Check(SchemaValidator& of) : of_(of) {}

  [[nodiscard]] const std::string& fault() const { return fault_; }

  Result<bool> is_of(const OrderedJson& value, const OrderedJson& schema) {
    if (schema.is_boolean()) return schema.get<bool>() || !tell("nothing is allowed here");
    TRY(step());
    if (++nested_ > kMaxNested) return Error{ErrorKind::budget, "the answer is nested too deep to be checked"};
    auto result = check(value, schema);
    --nested_;
    return result;
  }

 private:
  Result<void> step(uint64_t steps = 1) {
    steps_ += steps;
    if (steps_ <= kMaxSchemaSteps) return {};
    return Error{ErrorKind::budget, "the answer takes too long to be checked"};
  }

  Result<bool> has_pattern(const std::string& text, const std::string& pattern) {
    TRY(step(kQuickPattern));
    auto found = of_.has_pattern(text, pattern, kQuickPatternSteps);
    if (found || found.error().kind != ErrorKind::budget) return found;
    TRY(step(kLongPattern));
    return of_.has_pattern(text, pattern);
  }

  /// Keeps the first fault, except while alternatives are tried, of which another may hold. Returns true.
  bool tell(std::string_view what) {
    if (silent_ == 0 && fault_.empty())
      fault_ = path_.empty() ? std::string(what) : fmt::format("at {}: {}", path_, what);
    return true;
  }
  bool tell_keyword(const char* keyword) { return tell(fmt::format("\"{}\"", keyword)); }

  Result<bool> is_of_silently(const OrderedJson& value, const OrderedJson& schema) {
    ++silent_;
    auto result = is_of(value, schema);
    --silent_;
    return result;
  }

  /// Checks a member of the value.
  Result<bool> is_within(const OrderedJson& value, const OrderedJson& schema, std::string_view name) {
    const size_t length = path_.size();
    if (length < kMaxFaultBytes) path_ += fmt::format("/{}", brief(name));
    auto result = is_of(value, schema);
    path_.resize(std::min(length, path_.size()));
    return result;
  }
  Result<bool> is_within(const OrderedJson& value, const OrderedJson& schema, size_t index) {
    return is_within(value, schema, fmt::format("{}", index));
  }

  Result<bool> check(const OrderedJson& value, const OrderedJson& schema) {
    using CheckMethod = Result<bool> (Check::*)(const OrderedJson&, const OrderedJson&);
    constexpr std::array<CheckMethod, 4> kAlways = {&Check::has_type, &Check::is_listed, &Check::is_of_all,
                                                    &Check::is_of_condition};
    for (const CheckMethod part : kAlways) {
      TRY_ASSIGN(const bool is_right, (this->*part)(value, schema));
      if (!is_right) return false;
    }
    if (value.is_string()) return has_text(value.get_ref<const std::string&>(), schema);
    if (is_numeric(value)) return has_number(value, schema);
    if (value.is_array()) return has_items(value, schema);
    if (value.is_object()) return has_members(value, schema);
    return true;
  }

  Result<bool> has_type(const OrderedJson& value, const OrderedJson& schema) {
    const OrderedJson* type = find_keyword(schema, "type");
    if (type == nullptr) return true;
    const auto is = [&](const OrderedJson& name) {
      if (name == "integer") return is_whole(value);
      if (name == "number") return is_numeric(value);
      return name == value.type_name();
    };
    const bool is_right = type->is_array() ? std::ranges::any_of(*type, is) : is(*type);
    return is_right || !tell_keyword("type");
  }

  Result<bool> is_listed(const OrderedJson& value, const OrderedJson& schema) {
    if (const OrderedJson* one = find_keyword(schema, "const")) {
      TRY_ASSIGN(const bool is_right, are_equal(value, *one));
      if (!is_right) return !tell_keyword("const");
    }
    const OrderedJson* listed = find_keyword(schema, "enum");
    if (listed == nullptr) return true;
    for (const OrderedJson& each : *listed) {
      TRY_ASSIGN(const bool is_right, are_equal(value, each));
      if (is_right) return true;
    }
    return !tell_keyword("enum");
  }

  Result<bool> is_of_all(const OrderedJson& value, const OrderedJson& schema) {
    if (const OrderedJson* target = of_.schema_.target(schema)) {
      TRY_ASSIGN(const bool is_right, is_of(value, *target));
      if (!is_right) return false;
    }
    if (const OrderedJson* all = find_keyword(schema, "allOf")) {
      for (const OrderedJson& each : *all) {
        TRY_ASSIGN(const bool is_right, is_of(value, each));
        if (!is_right) return false;
      }
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const OrderedJson* ways = find_keyword(schema, keyword);
      if (ways == nullptr) continue;
      size_t right = 0;
      for (const OrderedJson& each : *ways) {
        TRY_ASSIGN(const bool is_right, is_of_silently(value, each));
        right += is_right ? 1 : 0;
      }
      if (right == 0 || (right > 1 && keyword == std::string_view("oneOf"))) return !tell_keyword(keyword);
    }
    return true;
  }

  Result<bool> is_of_condition(const OrderedJson& value, const OrderedJson& schema) {
    if (const OrderedJson* wrong = find_keyword(schema, "not")) {
      TRY_ASSIGN(const bool is_wrong, is_of_silently(value, *wrong));
      if (is_wrong) return !tell_keyword("not");
    }
    const OrderedJson* condition = find_keyword(schema, "if");
    if (condition == nullptr) return true;
    TRY_ASSIGN(const bool is_so, is_of_silently(value, *condition));
    const OrderedJson* then = find_keyword(schema, is_so ? "then" : "else");
    return then == nullptr ? Result<bool>(true) : is_of(value, *then);
  }

  Result<bool> has_text(const std::string& text, const OrderedJson& schema) {
    const OrderedJson* least = find_keyword(schema, "minLength");
    const OrderedJson* most = find_keyword(schema, "maxLength");
    if (least != nullptr || most != nullptr) {
      const uint64_t length = count_characters(text);
      if (least != nullptr && length < least->get<uint64_t>()) return !tell_keyword("minLength");
      if (most != nullptr && length > most->get<uint64_t>()) return !tell_keyword("maxLength");
    }
    if (const OrderedJson* pattern = find_keyword(schema, "pattern")) {
      TRY_ASSIGN(const bool is_right, has_pattern(text, pattern->get_ref<const std::string&>()));
      if (!is_right) return !tell_keyword("pattern");
    }
    const OrderedJson* format = find_keyword(schema, "format");
    const auto form = format == nullptr ? std::nullopt : pattern_of_format(format->get_ref<const std::string&>());
    if (!form) return true;
    TRY_ASSIGN(const bool is_right, has_pattern(text, std::string(*form)));
    return is_right || !tell_keyword("format");
  }

  Result<bool> has_number(const OrderedJson& value, const OrderedJson& schema) {
    struct Bound {
      const char* keyword;
      bool is_least, is_exclusive;
    };
    constexpr std::array<Bound, 4> kBounds = {Bound{"minimum", true, false}, Bound{"exclusiveMinimum", true, true},
                                              Bound{"maximum", false, false}, Bound{"exclusiveMaximum", false, true}};
    const std::string text = python_json(value, true);
    for (const Bound& each : kBounds) {
      const OrderedJson* bound = find_keyword(schema, each.keyword);
      if (bound == nullptr) continue;
      const std::string other = python_json(*bound, true);
      const auto& low = each.is_least ? other : text;
      const auto& high = each.is_least ? text : other;
      TRY_ASSIGN(const bool is_above, is_smaller(low, high));
      TRY_ASSIGN(const bool is_below, is_smaller(high, low));
      if (is_below || (each.is_exclusive && !is_above)) return !tell_keyword(each.keyword);
    }
    const OrderedJson* divisor = find_keyword(schema, "multipleOf");
    if (divisor == nullptr) return true;
    TRY_ASSIGN(const bool is_right, is_multiple(text, python_json(*divisor, true)));
    return is_right || !tell_keyword("multipleOf");
  }

  Result<bool> has_items(const OrderedJson& value, const OrderedJson& schema) {
    if (const OrderedJson* least = find_keyword(schema, "minItems"))
      if (value.size() < least->get<uint64_t>()) return !tell_keyword("minItems");
    if (const OrderedJson* most = find_keyword(schema, "maxItems"))
      if (value.size() > most->get<uint64_t>()) return !tell_keyword("maxItems");
    const OrderedJson* first = first_items(schema);
    const OrderedJson* others = other_items(schema);
    for (size_t i = 0; i < value.size(); ++i) {
      const OrderedJson* of = first != nullptr && i < first->size() ? &(*first)[i] : others;
      if (of == nullptr) continue;
      TRY_ASSIGN(const bool is_right, is_within(value[i], *of, i));
      if (!is_right) return false;
    }
    if (const OrderedJson* wanted = find_keyword(schema, "contains")) {
      uint64_t count = 0;
      for (const OrderedJson& each : value) {
        TRY_ASSIGN(const bool is_so, is_of_silently(each, *wanted));
        count += is_so ? 1 : 0;
      }
      if (count < schema.value("minContains", uint64_t{1})) return !tell_keyword("contains");
      if (schema.contains("maxContains") && count > schema["maxContains"].get<uint64_t>())
        return !tell_keyword("maxContains");
    }
    if (!schema.value("uniqueItems", false)) return true;
    for (size_t i = 0; i < value.size(); ++i) {
      for (size_t other = 0; other < i; ++other) {
        TRY_ASSIGN(const bool is_same, are_equal(value[i], value[other]));
        if (is_same) return !tell_keyword("uniqueItems");
      }
    }
    return true;
  }

  Result<bool> has_members(const OrderedJson& value, const OrderedJson& schema) {
    if (const OrderedJson* least = find_keyword(schema, "minProperties"))
      if (value.size() < least->get<uint64_t>()) return !tell_keyword("minProperties");
    if (const OrderedJson* most = find_keyword(schema, "maxProperties"))
      if (value.size() > most->get<uint64_t>()) return !tell_keyword("maxProperties");
    if (const OrderedJson* required = find_keyword(schema, "required")) {
      TRY_ASSIGN(const bool is_right, has_all(value, *required, "required"));
      if (!is_right) return false;
    }
    const OrderedJson* properties = find_keyword(schema, "properties");
    const OrderedJson* patterns = find_keyword(schema, "patternProperties");
    const OrderedJson* others = find_keyword(schema, "additionalProperties");
    const OrderedJson* names = find_keyword(schema, "propertyNames");
    for (const auto& [name, member] : value.items()) {
      TRY(step());
      if (names != nullptr) {
        TRY_ASSIGN(const bool is_right, is_within(OrderedJson(name), *names, name));
        if (!is_right) return false;
      }
      bool is_known = false;
      if (properties != nullptr) {
        if (const auto of = properties->find(name); of != properties->end()) {
          is_known = true;
          TRY_ASSIGN(const bool is_right, is_within(member, *of, name));
          if (!is_right) return false;
        }
      }
      if (patterns != nullptr) {
        for (const auto& [pattern, of] : patterns->items()) {
          TRY_ASSIGN(const bool is_found, has_pattern(name, pattern));
          if (!is_found) continue;
          is_known = true;
          TRY_ASSIGN(const bool is_right, is_within(member, of, name));
          if (!is_right) return false;
        }
      }
      if (is_known || others == nullptr) continue;
      TRY_ASSIGN(const bool is_right, is_within(member, *others, name));
      if (!is_right) return false;
    }
    return has_dependents(value, schema);
  }

  Result<bool> has_all(const OrderedJson& value, const OrderedJson& names, const char* keyword) {
    for (const OrderedJson& name : names) {
      TRY(step());
      if (!value.contains(name.get_ref<const std::string&>()))
        return !tell(fmt::format("\"{}\": {}", keyword, quote(name.get_ref<const std::string&>())));
    }
    return true;
  }

  Result<bool> has_dependents(const OrderedJson& value, const OrderedJson& schema) {
    for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
      const OrderedJson* all = find_keyword(schema, keyword);
      if (all == nullptr) continue;
      for (const auto& [name, each] : all->items()) {
        if (!value.contains(name)) continue;
        TRY_ASSIGN(const bool is_right, each.is_array() ? has_all(value, each, keyword) : is_of(value, each));
        if (!is_right) return false;
      }
    }
    return true;
  }

  Result<bool> are_equal(const OrderedJson& a, const OrderedJson& b) {
    TRY(step());
    if (is_numeric(a) && is_numeric(b)) {
      if (a.is_number_integer() && b.is_number_integer()) return a == b;
      const std::string one = python_json(a, true);
      const std::string other = python_json(b, true);
      if (one == other) return true;
      if (!is_whole(a) || !is_whole(b)) return a == b;
      TRY_ASSIGN(const bool is_below, is_smaller(one, other));
      TRY_ASSIGN(const bool is_above, is_smaller(other, one));
      return !is_below && !is_above;
    }
    if (a.type() != b.type() || a.size() != b.size()) return false;
    if (a.is_object()) {
      for (const auto& [key, each] : a.items()) {
        const auto other = b.find(key);
        if (other == b.end()) return false;
        TRY_ASSIGN(const bool is_same, are_equal(each, *other));
        if (!is_same) return false;
      }
      return true;
    }
    if (!a.is_array()) return a == b;
    for (size_t i = 0; i < a.size(); ++i) {
      TRY_ASSIGN(const bool is_same, are_equal(a[i], b[i]));
      if (!is_same) return false;
    }
    return true;
  }

  SchemaValidator& of_;
  std::string path_;
  std::string fault_;
  uint64_t steps_ = 0;
  uint32_t nested_ = 0;
  uint32_t silent_ = 0;
};

Result<std::optional<std::string>> SchemaValidator::fault(const OrderedJson& value) {
  Check check(*this);
  TRY_ASSIGN(const bool is_right, check.is_of(value, schema_.root()));
  return is_right ? std::nullopt : std::optional(check.fault());
}

Result<bool> SchemaValidator::is_of(const OrderedJson& value, const OrderedJson& schema) {
  return Check(*this).is_of(value, schema);
}

Result<bool> SchemaValidator::has_pattern(std::string_view text, const std::string& pattern, uint32_t most_steps) {
  auto found = patterns_.find(pattern);
  if (found == patterns_.end()) {
    TRY_ASSIGN(ValuePattern made, ValuePattern::compile(pattern));
    found = patterns_.emplace(pattern, std::move(made)).first;
  }
  return found->second.is_in(text, most_steps);
}

std::optional<std::string> schema_fault(std::string_view text, const OrderedJson& schema) {
  const auto fault = [&]() -> Result<std::optional<std::string>> {
    TRY_ASSIGN(const OrderedJson value, parse_ordered_json(text, format::kConversationDocument));
    TRY_ASSIGN(const JsonSchema of, JsonSchema::read(schema));
    return SchemaValidator(of).fault(value);
  }();
  return fault ? *fault : std::optional(fault.error().message);
}

}  // namespace dspack::runtime
