#include "runtime/text/output_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/foreign_text.h"
#include "runtime/text/json.h"
#include "runtime/text/schema_grammar.h"
#include "runtime/text/string_formats.h"

namespace dspack::runtime {
namespace {

using namespace std::string_view_literals;

// Keywords that say more than a grammar can.
constexpr std::array kUnsupported = {"not"sv,
                                     "if"sv,
                                     "then"sv,
                                     "else"sv,
                                     "dependencies"sv,
                                     "dependentRequired"sv,
                                     "dependentSchemas"sv,
                                     "contains"sv,
                                     "minContains"sv,
                                     "maxContains"sv,
                                     "unevaluatedItems"sv,
                                     "unevaluatedProperties"sv,
                                     "$dynamicRef"sv,
                                     "$recursiveRef"sv};
// The first of these that is there decides alone, so no other keyword may stand beside it.
constexpr std::array kDeciding = {"$ref"sv, "const"sv, "enum"sv, "anyOf"sv, "oneOf"sv, "allOf"sv};
constexpr std::array kOfObjects = {"properties"sv,        "required"sv,      "additionalProperties"sv,
                                   "patternProperties"sv, "propertyNames"sv, "minProperties"sv,
                                   "maxProperties"sv};
constexpr std::array kOfArrays = {"items"sv, "prefixItems"sv, "minItems"sv, "maxItems"sv, "uniqueItems"sv};
constexpr std::array kOfStrings = {"minLength"sv, "maxLength"sv, "pattern"sv, "format"sv};
constexpr std::array kOfNumbers = {"minimum"sv, "maximum"sv, "exclusiveMinimum"sv, "exclusiveMaximum"sv,
                                   "multipleOf"sv};

constexpr std::array kTypes = {"string"sv, "number"sv, "integer"sv, "boolean"sv, "null"sv, "array"sv, "object"sv};

template <size_t kCount>
bool has_any(const OrderedJson& schema, const std::array<std::string_view, kCount>& keywords) {
  return std::ranges::any_of(keywords, [&](std::string_view keyword) { return schema.contains(std::string(keyword)); });
}

bool is_of_type(const OrderedJson& value, const OrderedJson& type) {
  if (type.is_array()) {
    return std::ranges::any_of(type, [&](const OrderedJson& each) { return is_of_type(value, each); });
  }
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

/// A key as a step of a JSON pointer.
std::string pointer_step(const std::string& key) {
  return (OrderedJson::json_pointer() / key).to_string();
}

class SchemaReader {
 public:
  explicit SchemaReader(const OrderedJson& root) : root_(root) {}

  Result<OrderedJson> read_root() {
    TRY_ASSIGN(OrderedJson accepted, read(root_, "", 0));
    for (const auto& [target, place] : references_)
      if (!places_.contains(target)) return refuse(ErrorKind::invalid, place, "\"$ref\" leads to no schema");
    return accepted;
  }

 private:
  Result<OrderedJson> read(const OrderedJson& schema, const std::string& place, size_t depth) {
    places_.insert(place);
    if (++schemas_ > kMostSchemas) {
      return invalid(fmt::format("the schema holds more than {} schemas", kMostSchemas));
    }
    if (depth > kMostSchemaDepth) {
      return invalid(fmt::format("the schema's schemas are more than {} deep", kMostSchemaDepth));
    }
    if (schema.is_boolean() && schema.get<bool>()) return schema;
    if (!schema.is_object()) return refuse(ErrorKind::invalid, place, "is not a schema");
    for (const std::string_view keyword : kUnsupported)
      if (schema.contains(std::string(keyword))) return refuse(ErrorKind::unsupported, place, quote(keyword));
    OrderedJson accepted = schema;
    TRY(read_definitions(accepted, place, depth));
    const auto deciding = std::ranges::find_if(
        kDeciding, [&](std::string_view keyword) { return schema.contains(std::string(keyword)); });
    if (deciding != kDeciding.end()) {
      TRY(read_deciding(accepted, std::string(*deciding), place, depth));
      return accepted;
    }
    TRY(read_typed(accepted, place, depth));
    return accepted;
  }

  static Error refuse(ErrorKind kind, const std::string& place, std::string_view what) {
    return {kind, fmt::format("the schema{}: {}{}", place.empty() ? "" : " at " + brief(place), what,
                              kind == ErrorKind::unsupported ? " cannot be held to" : "")};
  }

  Result<void> read_definitions(OrderedJson& schema, const std::string& place, size_t depth) {
    for (const char* name : {"$defs", "definitions"}) {
      if (!schema.contains(name)) continue;
      TRY(read_each(schema[name], place + "/" + name, depth));
    }
    return {};
  }

  /// An object or a list of schemas.
  Result<void> read_each(OrderedJson& schemas, const std::string& place, size_t depth) {
    if (!schemas.is_object() && !schemas.is_array()) return refuse(ErrorKind::invalid, place, "holds no schemas");
    for (const auto& [key, each] : schemas.items()) {
      TRY_ASSIGN(each, read(each, place + pointer_step(key), depth + 1));
    }
    return {};
  }

  Result<void> read_deciding(OrderedJson& schema, const std::string& keyword, const std::string& place, size_t depth) {
    const auto count_of = [&](const auto& keywords) {
      return std::ranges::count_if(keywords, [&](std::string_view each) { return schema.contains(std::string(each)); });
    };
    if (count_of(kDeciding) > 1 || has_any(schema, kOfObjects) || has_any(schema, kOfArrays) ||
        has_any(schema, kOfStrings) || has_any(schema, kOfNumbers) ||
        (schema.contains("type") && keyword != "enum" && keyword != "const")) {
      return refuse(ErrorKind::unsupported, place, fmt::format("\"{}\" beside other keywords", keyword));
    }
    const OrderedJson& value = schema[keyword];
    if (keyword == "$ref") return check_reference(value, place);
    if (keyword == "const" || keyword == "enum") {
      const OrderedJson values = keyword == "enum" ? value : OrderedJson::array({value});
      if (!values.is_array() || values.empty()) return refuse(ErrorKind::invalid, place, "\"enum\" lists nothing");
      values_ += values.size();
      if (values_ > kMostValues) return invalid(fmt::format("the schema lists more than {} values", kMostValues));
      for (const OrderedJson& each : values)
        if (schema.contains("type") && !is_of_type(each, schema["type"]))
          return refuse(ErrorKind::unsupported, place,
                        fmt::format("a value of \"{}\" that is not of its \"type\"", keyword));
      schema.erase("type");
      return {};
    }
    if (!value.is_array() || value.empty()) return refuse(ErrorKind::invalid, place, quote(keyword) + " lists nothing");
    if (keyword == "allOf" && value.size() > 1) {
      return refuse(ErrorKind::unsupported, place, "\"allOf\" of several schemas");
    }
    if (keyword == "oneOf") {
      for (size_t i = 0; i < value.size(); ++i) {
        for (size_t other = 0; other < i; ++other) {
          if (are_apart(value[other], value[i], 0)) continue;
          return refuse(ErrorKind::unsupported, place,
                        fmt::format("\"oneOf\" of schemas {} and {}, which one value may both be of,", other, i));
        }
      }
    }
    return read_each(schema[keyword], place + "/" + keyword, depth);
  }

  /// Whether it shows that no value is of both: by their types, by the values that they list, or by a property that
  /// both require and that sets them apart.
  bool are_apart(const OrderedJson& first, const OrderedJson& second, size_t depth) const {
    constexpr size_t kDeepest = 3;
    const OrderedJson* a = resolved(first);
    const OrderedJson* b = resolved(second);
    if (depth > kDeepest || a == nullptr || b == nullptr || !a->is_object() || !b->is_object()) return false;
    if (const auto values = listed(*a))
      return std::ranges::none_of(*values, [&](const OrderedJson& value) { return may_have(*b, value); });
    if (const auto values = listed(*b))
      return std::ranges::none_of(*values, [&](const OrderedJson& value) { return may_have(*a, value); });
    const auto all = types(*a);
    const auto others = types(*b);
    if (all.empty() || others.empty()) return false;
    const auto is_common = [&](const std::string& type) {
      const bool is_number = type == "integer" || type == "number";
      return std::ranges::any_of(others, [&](const std::string& other) {
        return other == type || (is_number && (other == "integer" || other == "number"));
      });
    };
    std::vector<std::string> common;
    std::ranges::copy_if(all, std::back_inserter(common), is_common);
    if (common.empty()) return true;
    if (common != std::vector<std::string>{"object"} || !a->contains("required") || !b->contains("required"))
      return false;
    return std::ranges::any_of((*a)["required"], [&](const OrderedJson& name) {
      if (!name.is_string() || std::ranges::find((*b)["required"], name) == (*b)["required"].end()) return false;
      const auto property = [&](const OrderedJson& schema) -> const OrderedJson* {
        const auto properties = schema.find("properties");
        if (properties == schema.end() || !properties->is_object()) return nullptr;
        const auto found = properties->find(name.get_ref<const std::string&>());
        return found == properties->end() ? nullptr : &*found;
      };
      const OrderedJson* one = property(*a);
      const OrderedJson* other = property(*b);
      return one != nullptr && other != nullptr && are_apart(*one, *other, depth + 1);
    });
  }

  /// What a reference leads to; nullptr: nowhere, or through too many others.
  const OrderedJson* resolved(const OrderedJson& schema) const {
    constexpr int kMostSteps = 8;
    const OrderedJson* at = &schema;
    for (int steps = 0; steps < kMostSteps; ++steps) {
      if (!at->is_object() || !at->contains("$ref")) return at;
      const OrderedJson& path = (*at)["$ref"];
      if (!path.is_string() || !path.get_ref<const std::string&>().starts_with('#')) return nullptr;
      try {
        const OrderedJson::json_pointer pointer(path.get_ref<const std::string&>().substr(1));
        if (!root_.contains(pointer)) return nullptr;
        at = &root_[pointer];
      } catch (const OrderedJson::exception&) {
        return nullptr;  // not of the form of a pointer
      }
    }
    return nullptr;
  }

  static std::optional<OrderedJson> listed(const OrderedJson& schema) {
    if (schema.contains("const")) return OrderedJson::array({schema["const"]});
    if (schema.contains("enum") && schema["enum"].is_array()) return schema["enum"];
    return std::nullopt;
  }

  /// Those that a schema names; none: a value may be of any.
  static std::vector<std::string> types(const OrderedJson& schema) {
    std::vector<std::string> all;
    const OrderedJson type = schema.contains("type") ? schema["type"] : OrderedJson();
    for (const OrderedJson& each : type.is_array() ? type : OrderedJson::array({type}))
      if (each.is_string()) all.push_back(each.get<std::string>());
    return all;
  }

  /// Whether a value may be of a schema: not if it is not listed, or of another type.
  static bool may_have(const OrderedJson& schema, const OrderedJson& value) {
    if (const auto values = listed(schema)) return std::ranges::find(*values, value) != values->end();
    const auto all = types(schema);
    const bool is_number = value.is_number() || !long_number(value).empty();  // 1.0 is whole, too
    return all.empty() || is_of_type(value, OrderedJson(all)) ||
           (is_number &&
            std::ranges::any_of(all, [](const std::string& type) { return type == "integer" || type == "number"; }));
  }

  /// References lead to a schema within the root that is not a reference itself, or to the root. That it is one, and no
  /// value of "default" or "enum" at which nothing has looked, shows once all are read.
  Result<void> check_reference(const OrderedJson& value, const std::string& place) {
    if (!value.is_string() || !value.get_ref<const std::string&>().starts_with('#')) {
      return refuse(ErrorKind::unsupported, place, "\"$ref\" to anything outside the schema");
    }
    const OrderedJson* target = &root_;
    for (size_t steps = 0; steps <= kMostSchemas; ++steps) {
      const auto& path = (steps == 0 ? value : (*target)["$ref"]).get_ref<const std::string&>();
      const auto pointer = [&]() -> std::optional<OrderedJson::json_pointer> {
        try {
          return OrderedJson::json_pointer(path.substr(std::min<size_t>(1, path.size())));
        } catch (const OrderedJson::exception&) {
          return std::nullopt;  // not of the form of a pointer
        }
      }();
      if (!pointer || !root_.contains(*pointer)) return refuse(ErrorKind::invalid, place, "\"$ref\" leads nowhere");
      target = &root_[*pointer];
      if (!target->is_object()) return refuse(ErrorKind::invalid, place, "\"$ref\" leads to no schema");
      references_.emplace_back(pointer->to_string(), place);
      const auto next = target->find("$ref");
      if (next == target->end()) return {};
      if (!next->is_string() || !next->get_ref<const std::string&>().starts_with('#')) break;
    }
    return refuse(ErrorKind::invalid, place, "\"$ref\" leads to no schema");
  }

  Result<void> read_typed(OrderedJson& schema, const std::string& place, size_t depth) {
    const bool is_typed = schema.contains("type");
    if (!is_typed && (has_any(schema, kOfStrings) || has_any(schema, kOfNumbers) ||
                      (has_any(schema, kOfObjects) && has_any(schema, kOfArrays)))) {
      return refuse(ErrorKind::unsupported, place, "a keyword for one type without \"type\"");
    }
    const OrderedJson type = is_typed                      ? schema["type"]
                             : has_any(schema, kOfObjects) ? OrderedJson("object")
                             : has_any(schema, kOfArrays)  ? OrderedJson("array")
                                                           : OrderedJson();
    if (type.is_null()) return {};
    TRY(check_type(type, place));
    schema["type"] = type;
    const auto may_be = [&type](std::string_view name) {
      return type == name || (type.is_array() && std::ranges::find(type, OrderedJson(name)) != type.end());
    };
    if (may_be("object")) TRY(read_object(schema, place, depth));
    if (may_be("array")) TRY(read_array(schema, place, depth));
    if (may_be("string")) TRY(read_string(schema, place));
    if (may_be("number") && schema.contains("multipleOf")) {
      return refuse(ErrorKind::unsupported, place, "\"multipleOf\" of numbers that are not whole");
    }
    return {};
  }

  /// Of several types, each once: for every one that is listed, the library reads all that the schema holds anew.
  static Result<void> check_type(const OrderedJson& type, const std::string& place) {
    const OrderedJson types = type.is_array() ? type : OrderedJson::array({type});
    if (types.empty()) return refuse(ErrorKind::invalid, place, "\"type\" lists nothing");
    std::set<std::string> seen;
    for (const OrderedJson& each : types) {
      if (!each.is_string() || std::ranges::find(kTypes, each.get_ref<const std::string&>()) == kTypes.end()) {
        return refuse(ErrorKind::invalid, place,
                      fmt::format("\"type\": {} is none", each.is_string() ? quote(each.get<std::string>())
                                                                           : std::string("what is no string")));
      }
      if (!seen.insert(each.get<std::string>()).second) {
        return refuse(ErrorKind::invalid, place,
                      fmt::format("\"type\" lists {} twice", quote(each.get<std::string>())));
      }
    }
    return {};
  }

  Result<void> check_bounds(const OrderedJson& schema, const std::string& place,
                            std::initializer_list<const char*> names, uint64_t most = kMostRepeats) {
    for (const char* name : names) {
      const auto found = schema.find(name);
      if (found == schema.end()) continue;
      if (!found->is_number_unsigned() || found->get<uint64_t>() > most) {
        return refuse(ErrorKind::invalid, place, fmt::format("\"{}\" is not a number up to {}", name, most));
      }
    }
    return {};
  }

  Result<void> read_object(OrderedJson& schema, const std::string& place, size_t depth) {
    TRY(check_bounds(schema, place, {"minProperties", "maxProperties"}));
    const bool has_properties = schema.contains("properties");
    for (const char* name : {"properties", "patternProperties"})
      if (schema.contains(name)) TRY(read_each(schema[name], place + "/" + name, depth));
    if (schema.contains("patternProperties")) {
      if (has_properties) return refuse(ErrorKind::unsupported, place, "\"patternProperties\" beside \"properties\"");
      for (const auto& [pattern, each] : schema["patternProperties"].items())
        TRY(check_pattern(pattern, place));
      if (schema["patternProperties"].size() > 1) {
        return refuse(ErrorKind::unsupported, place,
                      "\"patternProperties\" of several patterns, of which one name may have two,");
      }
      if (schema.contains("additionalProperties") && schema["additionalProperties"] != false) {
        return refuse(ErrorKind::unsupported, place, "\"patternProperties\" beside \"additionalProperties\"");
      }
    }
    if (schema.contains("propertyNames")) {
      if (has_properties || schema.contains("patternProperties")) {
        return refuse(ErrorKind::unsupported, place, "\"propertyNames\" beside names that are listed");
      }
      TRY(read_names(schema["propertyNames"], place + "/propertyNames", depth));
    }
    if (const auto required = schema.find("required"); required != schema.end()) {
      if (!required->is_array()) return refuse(ErrorKind::invalid, place, "\"required\" is not a list");
      for (const OrderedJson& name : *required) {
        if (!name.is_string() || !has_properties || !schema["properties"].contains(name.get<std::string>())) {
          return refuse(ErrorKind::unsupported, place, "\"required\" of what \"properties\" lacks");
        }
      }
    }
    if (!schema.contains("additionalProperties")) {
      schema["additionalProperties"] = !has_properties && !schema.contains("patternProperties");
    } else if (schema["additionalProperties"].is_object()) {
      TRY_ASSIGN(schema["additionalProperties"],
                 read(schema["additionalProperties"], place + "/additionalProperties", depth + 1));
    }
    return {};
  }

  /// Names are strings, whether their schema says so or not.
  Result<void> read_names(OrderedJson& names, const std::string& place, size_t depth) {
    if (names.is_object() && !has_any(names, kDeciding) && !names.contains("type")) names["type"] = "string";
    TRY_ASSIGN(names, read(names, place, depth + 1));
    const bool is_listed = names.is_object() && names.contains("enum") &&
                           std::ranges::all_of(names["enum"], [](const OrderedJson& name) { return name.is_string(); });
    if (names == true || is_listed || (names.contains("type") && names["type"] == "string")) return {};
    return refuse(ErrorKind::unsupported, place, "anything but a string's keywords and \"enum\" of strings");
  }

  Result<void> read_array(OrderedJson& schema, const std::string& place, size_t depth) {
    TRY(check_bounds(schema, place, {"minItems", "maxItems"}));
    if (schema.contains("uniqueItems") && schema["uniqueItems"] != false) {
      return refuse(ErrorKind::unsupported, place, "\"uniqueItems\"");
    }
    if (schema.contains("prefixItems")) TRY(read_each(schema["prefixItems"], place + "/prefixItems", depth));
    if (!schema.contains("items")) {
      schema["items"] = !schema.contains("prefixItems");
    } else if (!schema["items"].is_boolean()) {
      TRY_ASSIGN(schema["items"], read(schema["items"], place + "/items", depth + 1));
    }
    return {};
  }

  Result<void> read_string(const OrderedJson& schema, const std::string& place) {
    TRY(check_bounds(schema, place, {"minLength", "maxLength"}, kMostLength));
    const bool has_pattern = schema.contains("pattern");
    const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
    if (static_cast<int>(has_pattern) + static_cast<int>(has_length) + static_cast<int>(schema.contains("format")) >
        1) {
      return refuse(ErrorKind::unsupported, place, "more than one of \"pattern\", \"format\" and a length");
    }
    if (schema.contains("format")) {
      if (!schema["format"].is_string()) return refuse(ErrorKind::invalid, place, "\"format\" is not a string");
      const auto& format = schema["format"].get_ref<const std::string&>();
      if (!is_known_format(format)) return refuse(ErrorKind::unsupported, place, "\"format\": " + quote(format));
    }
    if (!has_pattern) return {};
    if (!schema["pattern"].is_string()) return refuse(ErrorKind::invalid, place, "\"pattern\" is not a string");
    return check_pattern(schema["pattern"].get_ref<const std::string&>(), place);
  }

  Result<void> check_pattern(const std::string& pattern, const std::string& place) {
    if (pattern.size() > kMostPatternBytes) {
      return refuse(ErrorKind::invalid, place, fmt::format("a pattern of more than {} bytes", kMostPatternBytes));
    }
    if (++patterns_ > kMostPatterns) return invalid(fmt::format("the schema has more than {} patterns", kMostPatterns));
    return {};
  }

  const OrderedJson& root_;
  std::set<std::string> places_;                                 // of the schemas that were read, as JSON pointers
  std::vector<std::pair<std::string, std::string>> references_;  // where they lead, and their places
  size_t schemas_ = 0;
  size_t values_ = 0;
  size_t patterns_ = 0;
};

}  // namespace

Result<OrderedJson> accept_schema(const OrderedJson& schema) {
  // Reading keeps places, which hold all keys on the way, and so does the library: no key may be long.
  const size_t bytes = schema.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).size();
  if (bytes > kMostSchemaBytes) {
    return invalid(fmt::format("the schema has {} bytes, more than {}", bytes, kMostSchemaBytes));
  }
  TRY_ASSIGN(OrderedJson accepted, SchemaReader(schema).read_root());
  TRY(schema_grammar(accepted));  // what only shows there is told of the schema, not of the answer
  return accepted;
}

}  // namespace dspack::runtime
