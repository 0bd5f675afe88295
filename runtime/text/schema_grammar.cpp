#include "runtime/text/schema_grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/foreign_text.h"
#include "runtime/text/grammar_rules.h"
#include "runtime/text/json.h"
#include "runtime/text/json_pattern.h"
#include "runtime/text/json_schema.h"
#include "runtime/text/number_rules.h"
#include "runtime/text/schema_cases.h"
#include "runtime/text/schema_validator.h"
#include "runtime/text/string_formats.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {
namespace {

using namespace std::string_view_literals;

constexpr size_t kMaxValueDepth = 100;  // nesting of values, through references
constexpr size_t kMaxLists = 4000;      // lists of schemas that must hold together
constexpr int kMaxTimes = 32;           // repetitions of writing the grammar, each with the results of the one before
constexpr size_t kLongestInline = 100;  // bytes; longer expressions become rules

using Ways = std::vector<std::string>;
/// Arguments between a family's marks have nothing around and between them.
const ObjectStyle kArguments = {.begin = {}, .comma = {}, .end = literal(""), .end_of_none = literal("")};

using Rule = std::optional<std::string>;  // nullopt: no value fits

/// Lists of schemas that are known to have a value of finite length.
using Valued = std::set<SchemaList>;

class GrammarWriter {
 public:
  /// `valued`: only these lists may contain themselves; other recursive lists have no value.
  GrammarWriter(const JsonSchema& schema, const Valued& valued)
      : schema_(schema), valued_(valued), validator_(schema) {}

  /// nullopt: no value satisfies the schema.
  Result<std::optional<std::string>> write(std::optional<ArgumentStyle> style) {
    TRY_ASSIGN(const Rule value, style ? write_arguments(*style) : write({&schema_.root()}));
    if (!value) return std::optional<std::string>();
    return std::optional(fmt::format("root ::= {}\n{}", *value, rules_.text()));
  }

  /// The lists written so far that have a value.
  [[nodiscard]] Valued valued() const {
    Valued all;
    for (const auto& [list, written] : written_)
      if (written.rule) all.insert(list);
    return all;
  }

  [[nodiscard]] Error nothing() const {
    return schema_.refuse(ErrorKind::invalid, empty_ == nullptr ? schema_.root() : *empty_,
                          "no value is of it, or none that can be written");
  }

 private:
  Result<Rule> write_arguments(ArgumentStyle style) {
    TRY_ASSIGN(const std::vector<SchemaList> cases, schema_cases(schema_, {&schema_.root()}));
    Ways ways;
    for (const SchemaList& all : cases) {
      if ((types_of(all) & kObject) == 0) continue;
      TRY_ASSIGN(const Rule way, write_object(all, style));
      if (way) ways.push_back(*way);
    }
    return ways.empty() ? Rule() : Rule(alternatives(ways));
  }

  [[nodiscard]] Error refuse(const SchemaList& all, const Error& error) const {
    return schema_.refuse(error.kind, all.empty() ? schema_.root() : *all.front(), error.message);
  }

  /// The rule for a value of all these schemas. A repeated list is written once, and may contain itself.
  Result<Rule> write(const SchemaList& given) {
    SchemaList all = canonical_list(schema_, given);
    if (all.empty()) return Rule(rules_.any());
    const auto [found, is_new] = written_.try_emplace(all);
    Written& written = found->second;
    if (!is_new) {
      if (!written.is_open) return written.rule;
      if (!valued_.contains(all)) return Rule();
      written.is_used = true;
      return Rule(written.name);
    }
    if (written_.size() > kMaxLists) return invalid("the schema has too many combinations of schemas");
    if (++depth_ > kMaxValueDepth)
      return invalid(fmt::format("the schema's values are more than {} deep", kMaxValueDepth));
    written.name = fmt::format("d{}", written_.size());
    const auto body = write_cases(given);
    --depth_;
    if (!body) return body.error();
    written.is_open = false;
    if (!*body) {
      if (empty_ == nullptr) empty_ = all.front();
      return written.rule;
    }
    if (written.is_used) rules_.add(written.name, **body);
    written.rule = written.is_used                          ? written.name
                   : body->value().size() <= kLongestInline ? **body
                                                            : rules_.add(**body);
    return written.rule;
  }

  Result<Rule> write_cases(const SchemaList& given) {
    TRY_ASSIGN(const std::vector<SchemaList> cases, schema_cases(schema_, given));
    Ways ways;
    for (const SchemaList& all : cases) {
      TRY(write_case(all, kAnyType, ways));
    }
    return ways.empty() ? Rule() : Rule(alternatives(ways));
  }

  Result<void> write_case(const SchemaList& all, Types types, Ways& ways) {
    TRY_ASSIGN(const auto values, values_of(all));
    if (values) {
      for (const OrderedJson& value : *values)
        if (!value.is_string() || (types & kString) != 0) add(ways, literal(python_json(value, true)));
      return {};
    }
    types &= types_of(all);
    if (types == kAnyType && !has_typed_keywords(all)) {
      add(ways, rules_.any());
      return {};
    }
    if ((types & kNull) != 0) add(ways, literal("null"));
    if ((types & kBoolean) != 0) add(ways, "(\"true\" | \"false\")");
    const auto put = [&](const Result<Rule>& rule) -> Result<void> {
      if (!rule) return rule.error();
      if (*rule) add(ways, **rule);
      return {};
    };
    if ((types & kString) != 0) TRY(put(write_string(all)));
    if ((types & kWhole) != 0) {
      const auto number = number_rule(rules_, all, (types & kFraction) == 0);
      TRY(put(number ? number : Result<Rule>(refuse(all, number.error()))));
    }
    if ((types & kArray) != 0) TRY(put(write_array(all)));
    if ((types & kObject) != 0) TRY(put(write_object(all, std::nullopt)));
    return {};
  }

  static void add(Ways& ways, std::string way) {
    if (std::ranges::find(ways, way) == ways.end()) ways.push_back(std::move(way));
  }

  /// If values are listed: those that satisfy all schemas.
  Result<std::optional<std::vector<OrderedJson>>> values_of(const SchemaList& all) {
    const auto listing = std::ranges::find_if(all, [](const OrderedJson* each) {
      return find_keyword(*each, "const") != nullptr || find_keyword(*each, "enum") != nullptr;
    });
    if (listing == all.end()) return std::optional<std::vector<OrderedJson>>();
    const OrderedJson* one = find_keyword(**listing, "const");
    std::vector<OrderedJson> values;
    for (const OrderedJson& value : one != nullptr ? OrderedJson::array({*one}) : (**listing)["enum"]) {
      bool is_of_all = true;
      for (const OrderedJson* each : all) {
        const auto is_of = validator_.is_of(value, *each);
        if (!is_of) return refuse(all, is_of.error());
        is_of_all = is_of_all && *is_of;
      }
      if (is_of_all) values.push_back(value);
    }
    return std::optional(std::move(values));
  }

  // Strings.

  Result<Rule> write_string(const SchemaList& all) {
    const uint64_t least = bound_of(all, "minLength", true).value_or(0);
    const auto most = bound_of(all, "maxLength", false);
    if (most && least > *most) return Rule();
    for (const char* keyword : {"pattern", "format"}) {
      for (const OrderedJson* each : all) {
        const OrderedJson* found = find_keyword(*each, keyword);
        if (found == nullptr) continue;
        const auto& text = found->get_ref<const std::string&>();
        const auto pattern = keyword == "pattern"sv ? std::optional<std::string_view>(text) : pattern_of_format(text);
        if (!pattern) continue;
        const auto expression = json_pattern(*pattern, {.least = least, .most = most});
        if (expression) return Rule(rules_.add(regex(fmt::format("\"{}\"", *expression))));
      }
    }
    return Rule(rules_.string(least, most));
  }

  // Arrays.

  Result<Rule> write_array(const SchemaList& all) {
    const uint64_t least = bound_of(all, "minItems", true).value_or(0);
    auto most = bound_of(all, "maxItems", false);
    size_t first = 0;
    for (const OrderedJson* each : all) {
      const OrderedJson* items = first_items(*each);
      if (items == nullptr) continue;
      first = std::max(first, items->size());
      if (other_items(*each) == nullptr && least <= items->size()) tighten(most, items->size());
    }
    Ways items;
    for (size_t i = 0; i < first && (!most || i < *most); ++i) {
      TRY_ASSIGN(const Rule item, write(items_at(all, i)));
      if (!item) tighten(most, i);
      items.push_back(item.value_or(""));
    }
    Rule other;
    if (!most || *most > first) {
      TRY_ASSIGN(other, write(items_at(all, first)));
      if (!other) tighten(most, first);
    }
    if (most && least > *most) return Rule();
    return Rule(list_rule(items, other.value_or(""), least, most));
  }

  static void tighten(std::optional<uint64_t>& most, uint64_t other) { most = std::min(most.value_or(other), other); }

  static SchemaList items_at(const SchemaList& all, size_t index) {
    SchemaList items;
    for (const OrderedJson* each : all) {
      const OrderedJson* first = first_items(*each);
      const OrderedJson* item = first != nullptr && index < first->size() ? &(*first)[index] : other_items(*each);
      if (item != nullptr) items.push_back(item);
    }
    return items;
  }

  /// Built from the end: `follows` is the rule for what follows the first `i` items.
  std::string list_rule(const Ways& first, const std::string& other, uint64_t least, std::optional<uint64_t> most) {
    const std::string end = fmt::format("{} \"]\"", rules_.space());
    std::string follows;
    if (!most || *most > first.size()) {
      const uint64_t low = least > first.size() ? least - first.size() : 0;
      const auto high = most ? std::optional(*most - first.size()) : std::nullopt;
      const auto next = fmt::format("({} {})", rules_.comma(), other);
      if (!first.empty()) {
        follows = rules_.add(fmt::format("{} {}", repeated(next, low, high), end));
      } else {
        const auto more = high ? std::optional(*high - 1) : std::nullopt;
        follows = fmt::format("{} {} {}", other, repeated(next, low == 0 ? 0 : low - 1, more), end);
        if (low == 0) follows = fmt::format("({} | \"]\")", follows);
      }
    } else {
      follows = first.empty() ? "\"]\"" : end;
    }
    for (size_t i = first.size(); i-- > 0;) {
      const std::string close = i == 0 ? "\"]\"" : end;
      if (most && i >= *most) {
        follows = close;
        continue;
      }
      const std::string next = fmt::format("{} {} {}", i == 0 ? "" : rules_.comma(), first[i], follows);
      follows = rules_.add(i >= least ? fmt::format("{} | {}", close, next) : next);
    }
    return rules_.add(fmt::format("\"[\" {} {}", rules_.space(), follows));
  }

  // Objects.

  Result<Rule> write_object(const SchemaList& all, std::optional<ArgumentStyle> style) {
    ObjectMembers members{.least = bound_of(all, "minProperties", true).value_or(0),
                          .most = bound_of(all, "maxProperties", false)};
    const std::vector<std::string> names = names_of(all);
    for (const std::string& name : names) {
      TRY_ASSIGN(const auto schemas, schemas_of(all, name));
      const bool is_required = std::ranges::any_of(all, [&](const OrderedJson* each) {
        const OrderedJson* required = find_keyword(*each, "required");
        return required != nullptr && std::ranges::find(*required, OrderedJson(name)) != required->end();
      });
      Rule member;
      if (schemas) {
        TRY_ASSIGN(member, write_member(literal_name(name, style), *schemas, style));
      }
      if (member) members.listed.push_back({*member, is_required});
      if (!member && is_required) return Rule();
    }
    TRY_ASSIGN(members.free, write_free(all, names, style));
    const auto rule = object_rule(rules_, style ? kArguments : json_object_style(rules_), members);
    return rule ? rule : Result<Rule>(refuse(all, rule.error()));
  }

  static std::vector<std::string> names_of(const SchemaList& all) {
    std::vector<std::string> names;
    const auto put = [&](const std::string& name) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    };
    for (const OrderedJson* each : all)
      if (const OrderedJson* properties = find_keyword(*each, "properties"))
        for (const auto& [name, schema] : properties->items())
          put(name);
    for (const OrderedJson* each : all)
      if (const OrderedJson* required = find_keyword(*each, "required"))
        for (const OrderedJson& name : *required)
          put(name.get<std::string>());
    return names;
  }

  /// The schemas that hold for the member of this name; nullopt: no such member is allowed.
  Result<std::optional<SchemaList>> schemas_of(const SchemaList& all, const std::string& name) {
    SchemaList schemas;
    for (const OrderedJson* each : all) {
      if (const OrderedJson* of_names = find_keyword(*each, "propertyNames")) {
        const auto is_of = validator_.is_of(OrderedJson(name), *of_names);
        if (!is_of) return refuse(all, is_of.error());
        if (!*is_of) return std::optional<SchemaList>();
      }
      const size_t before = schemas.size();
      if (const OrderedJson* properties = find_keyword(*each, "properties"))
        if (const auto found = properties->find(name); found != properties->end()) schemas.push_back(&*found);
      if (const OrderedJson* patterns = find_keyword(*each, "patternProperties")) {
        for (const auto& [pattern, schema] : patterns->items()) {
          const auto is_found = validator_.has_pattern(name, pattern);
          if (!is_found) return refuse(all, is_found.error());
          if (*is_found) schemas.push_back(&schema);
        }
      }
      const OrderedJson* others = find_keyword(*each, "additionalProperties");
      if (schemas.size() == before && others != nullptr) schemas.push_back(others);
    }
    return std::optional(std::move(schemas));
  }

  /// The rule for members whose names are not listed; nullopt: none are allowed.
  Result<Rule> write_free(const SchemaList& all, const std::vector<std::string>& names,
                          std::optional<ArgumentStyle> style) {
    SchemaList of_values, of_names;
    Ways ways;
    bool is_listed = false, is_said = false;
    for (const OrderedJson* each : all) {
      is_listed = is_listed || find_keyword(*each, "properties") != nullptr;
      if (const OrderedJson* found = find_keyword(*each, "propertyNames")) of_names.push_back(found);
      const OrderedJson* patterns = find_keyword(*each, "patternProperties");
      const OrderedJson* others = find_keyword(*each, "additionalProperties");
      if (others != nullptr) of_values.push_back(others);
      is_said = is_said || others != nullptr || patterns != nullptr;
      if (patterns == nullptr) continue;
      for (const auto& [pattern, schema] : patterns->items()) {
        TRY_ASSIGN(const std::string name, write_name(pattern, schema, style));
        TRY_ASSIGN(const Rule member, write_member(name, {&schema}, style));
        if (member) add(ways, *member);
      }
      if (others == nullptr) return ways.empty() ? Rule() : Rule(alternatives(ways));
    }
    if (!is_said && is_listed) return Rule();
    TRY_ASSIGN(const Rule value, write(of_values));
    if (!value) return ways.empty() ? Rule() : Rule(alternatives(ways));
    TRY_ASSIGN(const Rule name, write_free_name(of_names, names, style));
    if (name) {
      TRY_ASSIGN(const Rule member, write_member(*name, of_values, style));
      if (member) add(ways, *member);
    }
    return ways.empty() ? Rule() : Rule(alternatives(ways));
  }

  /// A name that matches a pattern; between a family's marks, where names are unquoted, any name.
  Result<std::string> write_name(const std::string& pattern, const OrderedJson& schema,
                                 std::optional<ArgumentStyle> style) {
    if (style) return plain_name();
    const auto name = json_pattern(pattern);
    if (!name) return schema_.refuse(ErrorKind::unsupported, schema, "names of this pattern cannot be held to");
    return rules_.add(regex(fmt::format("\"{}\"", *name)));
  }

  std::string plain_name() { return rules_.once("name", regex("[A-Za-z_][0-9A-Za-z_.-]{0,63}")); }

  Result<Rule> write_free_name(const SchemaList& of_names, const std::vector<std::string>& names,
                               std::optional<ArgumentStyle> style) {
    if (style) return Rule(plain_name());
    const SchemaList all = canonical_list(schema_, of_names);
    if (!all.empty()) {
      TRY_ASSIGN(const std::vector<SchemaList> cases, schema_cases(schema_, all));
      Ways ways;
      for (const SchemaList& each : cases) {
        TRY_ASSIGN(const auto values, values_of(each));
        for (const OrderedJson& value : values.value_or(std::vector<OrderedJson>()))
          if (value.is_string()) add(ways, literal(python_json(value, true)));
        if (values || (types_of(each) & kString) == 0) continue;
        TRY_ASSIGN(const Rule way, write_string(each));
        if (way) add(ways, *way);
      }
      return ways.empty() ? Rule() : Rule(alternatives(ways));
    }
    if (names.empty()) return Rule(rules_.string());
    return Rule(other_names_rule(rules_, names).value_or(rules_.string()));
  }

  // Members: `"name": value`, or a family's marks around both.

  static std::string literal_name(const std::string& name, std::optional<ArgumentStyle> style) {
    return literal(style ? name : python_json(OrderedJson(name), true));
  }

  /// `name`: a grammar expression.
  Result<Rule> write_member(const std::string& name, const SchemaList& schemas, std::optional<ArgumentStyle> style) {
    if (style) return write_argument(name, schemas, *style);
    TRY_ASSIGN(const Rule value, write(schemas));
    if (!value) return Rule();
    return Rule(rules_.add(fmt::format("{} {} \":\" {} {}", name, rules_.space(), rules_.space(), *value)));
  }

  Result<Rule> write_argument(const std::string& name, const SchemaList& schemas, ArgumentStyle style) {
    const std::string end(style == ArgumentStyle::glm ? marks::kEndValue : marks::kEndParameter);
    Ways texts, values;
    TRY_ASSIGN(const std::vector<SchemaList> cases, schema_cases(schema_, schemas));
    for (const SchemaList& all : cases) {
      TRY_ASSIGN(const auto listed, values_of(all));
      for (const OrderedJson& value : listed.value_or(std::vector<OrderedJson>()))
        if (value.is_string() && value.get_ref<const std::string&>().find(end) == std::string::npos)
          add(texts, literal(value.get_ref<const std::string&>()));
      if (!listed && (types_of(all) & kString) != 0)
        add(texts,
            rules_.once("text", fmt::format("TagDispatch(loop_after_dispatch=false, excludes=({}))", literal(end))));
      TRY(write_case(all, kAnyType & ~kString, values));
    }
    const auto between = [&](std::string_view begin, std::string_view middle, const Ways& ways, std::string_view last) {
      return fmt::format("{} {} {} {} {}", literal(begin), name, literal(middle), alternatives(ways), literal(last));
    };
    Ways ways;
    if (style == ArgumentStyle::glm) {
      texts.insert(texts.end(), values.begin(), values.end());
      if (!texts.empty())
        ways.push_back(between(marks::kKey, fmt::format("{}\n{}", marks::kEndKey, marks::kValue), texts, end + "\n"));
    } else {
      const std::string begin = fmt::format("{} name=\"", marks::kParameter);
      if (!texts.empty()) ways.push_back(between(begin, "\" string=\"true\">", texts, end + "\n"));
      if (!values.empty()) ways.push_back(between(begin, "\" string=\"false\">", values, end + "\n"));
    }
    return ways.empty() ? Rule() : Rule(rules_.add(fmt::format("{}", fmt::join(ways, " | "))));
  }

  struct Written {
    std::string name = {};
    Rule rule = {};
    bool is_open = true;   // still being written
    bool is_used = false;  // by its own body
  };

  const JsonSchema& schema_;
  const Valued& valued_;
  SchemaValidator validator_;
  GrammarRules rules_;
  std::map<SchemaList, Written> written_;
  const OrderedJson* empty_ = nullptr;  // a schema without any value
  size_t depth_ = 0;
};

/// Repeats writing until the set of lists with values is stable: a recursive schema has a value if it need not recurse.
Result<std::string> written(const OrderedJson& schema, std::optional<ArgumentStyle> style) {
  TRY_ASSIGN(const JsonSchema read, JsonSchema::read(schema));
  Valued known;
  for (int times = 0; times < kMaxTimes; ++times) {
    GrammarWriter writer(read, known);
    TRY_ASSIGN(std::optional<std::string> grammar, writer.write(style));
    Valued found = writer.valued();
    if (found == known)
      return grammar ? Result<std::string>(*std::move(grammar)) : Result<std::string>(writer.nothing());
    known = std::move(found);
  }
  return invalid("the schema has too many schemas that hold themselves within each other");
}

}  // namespace

Result<std::string> schema_grammar(const OrderedJson& schema) {
  return written(schema, std::nullopt);
}

Result<std::string> arguments_grammar(const OrderedJson& schema, ArgumentStyle style) {
  return written(schema, style);
}

}  // namespace dspack::runtime
