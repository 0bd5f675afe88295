#include "runtime/text/schema_types.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace dspack::runtime {
namespace {

constexpr std::array<std::pair<std::string_view, Types>, 7> kTypeNames = {{{"null", kNull},
                                                                           {"boolean", kBoolean},
                                                                           {"string", kString},
                                                                           {"array", kArray},
                                                                           {"object", kObject},
                                                                           {"integer", kWhole},
                                                                           {"number", kWhole | kFraction}}};
constexpr std::array<std::pair<std::string_view, Types>, 27> kKeywordsOfTypes = {
    {{"properties", kObject},
     {"required", kObject},
     {"additionalProperties", kObject},
     {"patternProperties", kObject},
     {"propertyNames", kObject},
     {"minProperties", kObject},
     {"maxProperties", kObject},
     {"dependentRequired", kObject},
     {"dependentSchemas", kObject},
     {"dependencies", kObject},
     {"items", kArray},
     {"prefixItems", kArray},
     {"additionalItems", kArray},
     {"minItems", kArray},
     {"maxItems", kArray},
     {"uniqueItems", kArray},
     {"contains", kArray},
     {"minLength", kString},
     {"maxLength", kString},
     {"pattern", kString},
     {"format", kString},
     {"minimum", kWhole | kFraction},
     {"maximum", kWhole | kFraction},
     {"exclusiveMinimum", kWhole | kFraction},
     {"exclusiveMaximum", kWhole | kFraction},
     {"multipleOf", kWhole | kFraction},
     {"minContains", kArray}}};

}  // namespace

Types types_of(const SchemaList& all) {
  Types named = kAnyType;
  Types meant = 0;
  for (const OrderedJson* each : all) {
    if (const OrderedJson* type = find_keyword(*each, "type")) {
      Types here = 0;
      for (const auto& [name, bits] : kTypeNames)
        if (*type == name || (type->is_array() && std::ranges::find(*type, OrderedJson(name)) != type->end()))
          here |= bits;
      named &= here;
    }
    for (const auto& [keyword, bits] : kKeywordsOfTypes)
      if (each->contains(keyword)) meant |= bits;
  }
  return named == kAnyType && meant != 0 ? meant : named;
}

bool has_typed_keywords(const SchemaList& all) {
  return std::ranges::any_of(all, [](const OrderedJson* each) {
    return std::ranges::any_of(kKeywordsOfTypes, [&](const auto& keyword) { return each->contains(keyword.first); });
  });
}

std::optional<uint64_t> bound_of(const SchemaList& all, const char* keyword, bool is_least) {
  std::optional<uint64_t> bound;
  for (const OrderedJson* each : all) {
    const OrderedJson* found = find_keyword(*each, keyword);
    if (found == nullptr) continue;
    const auto value = found->get<uint64_t>();
    bound = is_least ? std::max(bound.value_or(0), value) : std::min(bound.value_or(value), value);
  }
  return bound;
}

}  // namespace dspack::runtime
