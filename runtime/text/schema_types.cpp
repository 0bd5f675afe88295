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
                                                                           {"number", kNumber}}};
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
    for (const SchemaKeyword& keyword : schema_keywords())
      if (keyword.types != 0 && each->contains(keyword.name)) meant |= keyword.types;
  }
  return named == kAnyType && meant != 0 ? meant : named;
}

bool has_typed_keywords(const SchemaList& all) {
  return std::ranges::any_of(all, [](const OrderedJson* each) {
    return std::ranges::any_of(schema_keywords(), [&](const SchemaKeyword& keyword) {
      return keyword.types != 0 && each->contains(keyword.name);
    });
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
