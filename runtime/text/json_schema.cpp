#include "runtime/text/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/foreign_text.h"
#include "runtime/text/json.h"
#include "runtime/text/schema_keywords.h"
#include "runtime/text/string_formats.h"
#include "runtime/text/value_pattern.h"

namespace dspack::runtime {
namespace {

using namespace std::string_view_literals;

constexpr std::array kTypes = {"string"sv, "number"sv, "integer"sv, "boolean"sv, "null"sv, "array"sv, "object"sv};
// Keywords by their value: a schema, a list of schemas, or named schemas.
constexpr std::array kOneSchema = {
    "not", "if", "then", "else", "contains", "additionalProperties", "additionalItems", "propertyNames"};
constexpr std::array kListsOfSchemas = {"allOf", "anyOf", "oneOf", "prefixItems"};
constexpr std::array kNamedSchemas = {"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"};
// Keywords whose schemas apply to the same value as the schema that contains them.
constexpr std::array kInPlace = {"allOf",       "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
                                 "dependencies"};

/// A key as a step of a JSON pointer.
std::string pointer_step(const std::string& key) {
  return (OrderedJson::json_pointer() / key).to_string();
}

bool is_known_dialect(std::string_view uri) {
  constexpr std::array kKnown = {"draft-04/schema"sv, "draft-06/schema"sv, "draft-07/schema"sv,
                                 "draft/2019-09/schema"sv, "draft/2020-12/schema"sv};
  const size_t scheme = uri.find("://json-schema.org/");
  if (scheme == std::string_view::npos) return false;
  std::string_view name = uri.substr(scheme + "://json-schema.org/"sv.size());
  while (name.ends_with('#'))
    name.remove_suffix(1);
  return std::ranges::find(kKnown, name) != kKnown.end() || name == "schema";
}

std::optional<uint32_t> hex_value(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint32_t>(c - '0');
  const char lower = static_cast<char>(c | 0x20);
  if (lower >= 'a' && lower <= 'f') return static_cast<uint32_t>(lower - 'a' + 10);
  return std::nullopt;
}

/// The fragment of a URI without its percent-encoding (RFC 6901, section 6).
std::string decoded(std::string_view fragment) {
  std::string text;
  for (size_t i = 0; i < fragment.size(); ++i) {
    const auto high = i + 2 < fragment.size() ? hex_value(fragment[i + 1]) : std::nullopt;
    const auto low = i + 2 < fragment.size() ? hex_value(fragment[i + 2]) : std::nullopt;
    if (fragment[i] == '%' && high && low) {
      text += static_cast<char>(*high * 16 + *low);
      i += 2;
    } else {
      text += fragment[i];
    }
  }
  return text;
}

}  // namespace

class SchemaReader {
 public:
  explicit SchemaReader(JsonSchema& made) : made_(made) {}

  Result<void> read() {
    TRY(read(*made_.root_, nullptr, "", 0));
    for (const auto& [schema, spot] : made_.spots_)
      TRY(resolve(*schema));
    std::map<const OrderedJson*, bool> looked_at;
    for (const auto& [schema, spot] : made_.spots_)
      TRY(check_circles(*schema, looked_at));
    return {};
  }

 private:
  Result<void> read(const OrderedJson& schema, const OrderedJson* parent, std::string step, size_t depth) {
    made_.spots_[&schema] = {.parent = parent, .step = std::move(step)};
    if (made_.spots_.size() > kMaxSchemas) {
      return invalid(fmt::format("the schema holds more than {} schemas", kMaxSchemas));
    }
    if (depth > kMaxSchemaDepth) {
      return invalid(fmt::format("the schema's schemas are more than {} deep", kMaxSchemaDepth));
    }
    if (schema.is_boolean()) return {};
    if (!schema.is_object()) return made_.refuse(ErrorKind::invalid, schema, "is not a schema");
    for (const SchemaKeyword& keyword : schema_keywords())
      if (keyword.treatment == SchemaKeyword::Treatment::refused && schema.contains(keyword.name))
        return made_.refuse(ErrorKind::unsupported, schema, fmt::format("\"{}\" cannot be held to", keyword.name));
    const OrderedJson* dialect = find_keyword(schema, "$schema");
    if (dialect != nullptr && (!dialect->is_string() || !is_known_dialect(dialect->get_ref<const std::string&>())))
      return made_.refuse(ErrorKind::unsupported, schema, "the dialect that \"$schema\" names is not known");
    if (parent != nullptr && schema.contains("$id"))
      return made_.refuse(ErrorKind::unsupported, schema, "\"$id\" below the root cannot be followed");
    TRY(read_schemas(schema, depth));
    TRY(check_type(schema));
    TRY(check_values(schema));
    TRY(check_bounds(schema, {"minProperties", "maxProperties", "minItems", "maxItems", "minContains", "maxContains"},
                     kMaxRepeats));
    TRY(check_bounds(schema, {"minLength", "maxLength"}, kMaxLength));
    TRY(check_numbers(schema));
    TRY(check_strings(schema));
    return check_names(schema);
  }

  Result<void> read_one(const OrderedJson& parent, const std::string& keyword, size_t depth) {
    const OrderedJson* found = find_keyword(parent, keyword.c_str());
    return found == nullptr ? Result<void>() : read(*found, &parent, pointer_step(keyword), depth + 1);
  }

  /// Reads an object or a list of schemas.
  Result<void> read_all(const OrderedJson& parent, const std::string& keyword, bool are_named, size_t depth) {
    const OrderedJson* found = find_keyword(parent, keyword.c_str());
    if (found == nullptr) return {};
    if (are_named ? !found->is_object() : !found->is_array() || found->empty())
      return made_.refuse(ErrorKind::invalid, parent, fmt::format("{} holds no schemas", quote(keyword)));
    for (const auto& [key, each] : found->items())
      TRY(read(each, &parent, pointer_step(keyword) + pointer_step(key), depth + 1));
    return {};
  }

  Result<void> read_schemas(const OrderedJson& schema, size_t depth) {
    for (const char* keyword : kOneSchema)
      TRY(read_one(schema, keyword, depth));
    for (const char* keyword : kListsOfSchemas)
      TRY(read_all(schema, keyword, false, depth));
    for (const char* keyword : kNamedSchemas)
      TRY(read_all(schema, keyword, true, depth));
    if (const OrderedJson* patterns = find_keyword(schema, "patternProperties"))
      for (const auto& [pattern, each] : patterns->items())
        TRY(check_pattern(pattern, schema));
    if (const OrderedJson* items = find_keyword(schema, "items")) {
      if (items->is_array() && schema.contains("prefixItems"))
        return made_.refuse(ErrorKind::invalid, schema, "\"items\" is a list beside \"prefixItems\"");
      TRY(items->is_array() ? read_all(schema, "items", false, depth) : read_one(schema, "items", depth));
    }
    const OrderedJson* dependencies = find_keyword(schema, "dependencies");
    if (dependencies == nullptr) return {};
    if (!dependencies->is_object()) return made_.refuse(ErrorKind::invalid, schema, "\"dependencies\" is no object");
    for (const auto& [key, each] : dependencies->items())
      if (!each.is_array()) TRY(read(each, &schema, "/dependencies" + pointer_step(key), depth + 1));
    return {};
  }

  Result<void> check_type(const OrderedJson& schema) {
    const OrderedJson* type = find_keyword(schema, "type");
    if (type == nullptr) return {};
    const OrderedJson types = type->is_array() ? *type : OrderedJson::array({*type});
    if (types.empty()) return made_.refuse(ErrorKind::invalid, schema, "\"type\" lists nothing");
    std::set<std::string> seen;
    for (const OrderedJson& each : types) {
      if (!each.is_string() || std::ranges::find(kTypes, each.get_ref<const std::string&>()) == kTypes.end())
        return made_.refuse(ErrorKind::invalid, schema,
                            fmt::format("\"type\": {} is none", each.is_string() ? quote(each.get<std::string>())
                                                                                 : std::string("what is no string")));
      if (!seen.insert(each.get<std::string>()).second)
        return made_.refuse(ErrorKind::invalid, schema,
                            fmt::format("\"type\" lists {} twice", quote(each.get<std::string>())));
    }
    return {};
  }

  Result<void> check_values(const OrderedJson& schema) {
    if (schema.contains("const")) ++values_;
    if (const OrderedJson* listed = find_keyword(schema, "enum")) {
      if (!listed->is_array() || listed->empty())
        return made_.refuse(ErrorKind::invalid, schema, "\"enum\" lists nothing");
      values_ += listed->size();
    }
    if (values_ > kMaxValues) return invalid(fmt::format("the schema lists more than {} values", kMaxValues));
    return {};
  }

  Result<void> check_bounds(const OrderedJson& schema, std::initializer_list<const char*> names, uint64_t most) {
    for (const char* name : names) {
      const OrderedJson* found = find_keyword(schema, name);
      if (found != nullptr && (!found->is_number_unsigned() || found->get<uint64_t>() > most))
        return made_.refuse(ErrorKind::invalid, schema, fmt::format("\"{}\" is not a number up to {}", name, most));
    }
    return {};
  }

  Result<void> check_numbers(const OrderedJson& schema) {
    for (const char* name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      const OrderedJson* found = find_keyword(schema, name);
      if (found != nullptr && !found->is_number() && long_number(*found).empty())
        return made_.refuse(ErrorKind::invalid, schema, fmt::format("\"{}\" is not a number", name));
    }
    const OrderedJson* divisor = find_keyword(schema, "multipleOf");
    if (divisor != nullptr && (divisor->is_number() ? *divisor <= 0 : long_number(*divisor).starts_with('-')))
      return made_.refuse(ErrorKind::invalid, schema, "\"multipleOf\" is not above zero");
    const OrderedJson* unique = find_keyword(schema, "uniqueItems");
    if (unique != nullptr && !unique->is_boolean())
      return made_.refuse(ErrorKind::invalid, schema, "\"uniqueItems\" is neither true nor false");
    return {};
  }

  Result<void> check_strings(const OrderedJson& schema) {
    if (const OrderedJson* format = find_keyword(schema, "format")) {
      if (!format->is_string()) return made_.refuse(ErrorKind::invalid, schema, "\"format\" is not a string");
      if (!is_known_format(format->get_ref<const std::string&>()))
        return made_.refuse(
            ErrorKind::unsupported, schema,
            fmt::format("\"format\": {} cannot be held to", quote(format->get_ref<const std::string&>())));
    }
    const OrderedJson* pattern = find_keyword(schema, "pattern");
    if (pattern == nullptr) return {};
    if (!pattern->is_string()) return made_.refuse(ErrorKind::invalid, schema, "\"pattern\" is not a string");
    return check_pattern(pattern->get_ref<const std::string&>(), schema);
  }

  Result<void> check_pattern(const std::string& pattern, const OrderedJson& schema) {
    if (pattern.size() > kMaxSchemaPatternBytes)
      return made_.refuse(ErrorKind::invalid, schema,
                          fmt::format("a pattern of more than {} bytes", kMaxSchemaPatternBytes));
    if (const auto made = ValuePattern::compile(pattern); !made)
      return made_.refuse(made.error().kind, schema, made.error().message);
    if (++patterns_ > kMaxPatterns) return invalid(fmt::format("the schema has more than {} patterns", kMaxPatterns));
    return {};
  }

  Result<void> check_names(const OrderedJson& schema) {
    const auto are_names = [](const OrderedJson& list) {
      return list.is_array() && std::ranges::all_of(list, [](const OrderedJson& name) { return name.is_string(); });
    };
    const OrderedJson* required = find_keyword(schema, "required");
    if (required != nullptr && !are_names(*required))
      return made_.refuse(ErrorKind::invalid, schema, "\"required\" is not a list of names");
    for (const char* keyword : {"dependentRequired", "dependencies"}) {
      const OrderedJson* found = find_keyword(schema, keyword);
      if (found == nullptr) continue;
      const bool may_be_schemas = keyword == "dependencies"sv;
      if (!found->is_object() || !std::ranges::all_of(*found, [&](const OrderedJson& each) {
            return are_names(each) || (may_be_schemas && !each.is_array());
          }))
        return made_.refuse(ErrorKind::invalid, schema, fmt::format("\"{}\" has no lists of names", keyword));
    }
    return {};
  }

  /// Resolves "$ref". It must lead to a schema within the root, not to a value in "default" or "enum", which was not
  /// checked.
  Result<void> resolve(const OrderedJson& schema) {
    if (!schema.is_object()) return {};
    const OrderedJson* reference = find_keyword(schema, "$ref");
    if (reference == nullptr) return {};
    if (!reference->is_string() || !reference->get_ref<const std::string&>().starts_with('#'))
      return made_.refuse(ErrorKind::unsupported, schema, "\"$ref\" to anything outside the schema cannot be followed");
    const OrderedJson* target = nullptr;
    try {
      const OrderedJson::json_pointer pointer(decoded(reference->get_ref<const std::string&>().substr(1)));
      if (!made_.root_->contains(pointer)) return made_.refuse(ErrorKind::invalid, schema, "\"$ref\" leads nowhere");
      target = &made_.root_->at(pointer);
    } catch (const OrderedJson::exception&) {  // not a JSON pointer
      return made_.refuse(ErrorKind::invalid, schema, "\"$ref\" leads nowhere");
    }
    if (!made_.spots_.contains(target)) return made_.refuse(ErrorKind::invalid, schema, "\"$ref\" leads to no schema");
    made_.targets_[&schema] = target;
    return {};
  }

  /// Refuses a schema that applies to itself: one that reaches itself by references and by parts that describe the same
  /// value. `looked_at`: schemas that were begun; true if finished.
  Result<void> check_circles(const OrderedJson& schema, std::map<const OrderedJson*, bool>& looked_at) {
    const auto [found, is_new] = looked_at.try_emplace(&schema, false);
    if (!is_new) {
      if (found->second) return {};
      return made_.refuse(ErrorKind::invalid, schema, "\"$ref\" leads to itself");
    }
    if (const OrderedJson* target = made_.target(schema)) TRY(check_circles(*target, looked_at));
    for (const char* keyword : kInPlace) {
      const OrderedJson* part = schema.is_object() ? find_keyword(schema, keyword) : nullptr;
      if (part == nullptr) continue;
      if (made_.spots_.contains(part)) {
        TRY(check_circles(*part, looked_at));
        continue;
      }
      for (const OrderedJson& each : *part)
        if (made_.spots_.contains(&each)) TRY(check_circles(each, looked_at));
    }
    looked_at[&schema] = true;
    return {};
  }

  JsonSchema& made_;
  size_t values_ = 0;
  size_t patterns_ = 0;
};

const OrderedJson* find_keyword(const OrderedJson& schema, const char* keyword) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(keyword);
  return found == schema.end() ? nullptr : &*found;
}

const OrderedJson* first_items(const OrderedJson& schema) {
  if (const OrderedJson* first = find_keyword(schema, "prefixItems")) return first;
  const OrderedJson* items = find_keyword(schema, "items");
  return items != nullptr && items->is_array() ? items : nullptr;
}

const OrderedJson* other_items(const OrderedJson& schema) {
  const OrderedJson* items = find_keyword(schema, "items");
  return items != nullptr && items->is_array() ? find_keyword(schema, "additionalItems") : items;
}

Result<JsonSchema> JsonSchema::read(const OrderedJson& schema) {
  // Places and the grammar contain keys, so keys must not be long.
  const size_t bytes = schema.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).size();
  if (bytes > kMaxSchemaBytes) {
    return invalid(fmt::format("the schema has {} bytes, more than {}", bytes, kMaxSchemaBytes));
  }
  JsonSchema made;
  made.root_ = std::make_shared<const OrderedJson>(schema);
  TRY(SchemaReader(made).read());
  return made;
}

const OrderedJson* JsonSchema::target(const OrderedJson& schema) const {
  const auto found = targets_.find(&schema);
  return found == targets_.end() ? nullptr : found->second;
}

std::string JsonSchema::place(const OrderedJson& schema) const {
  std::vector<std::string_view> steps;
  for (auto at = spots_.find(&schema); at != spots_.end() && at->second.parent != nullptr;
       at = spots_.find(at->second.parent))
    steps.push_back(at->second.step);
  std::ranges::reverse(steps);
  std::string place;
  for (const std::string_view step : steps)
    place += step;
  return place;
}

Error JsonSchema::refuse(ErrorKind kind, const OrderedJson& schema, std::string_view what) const {
  const std::string at = place(schema);
  return {kind, fmt::format("the schema{}: {}", at.empty() ? "" : " at " + brief(at), what)};
}

}  // namespace dspack::runtime
