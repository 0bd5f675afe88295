#include "runtime/text/schema_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "runtime/text/schema_keywords.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxCaseSteps = 20'000;  // schemas visited for one value

/// Whether a schema adds nothing to the target of its reference, or, without a reference, accepts everything.
bool is_bare(const OrderedJson& schema) {
  if (schema.is_boolean()) return schema.get<bool>();
  return std::ranges::none_of(schema_keywords(), [&](const SchemaKeyword& keyword) {
    return keyword.treatment != SchemaKeyword::Treatment::remark && keyword.name != "$ref" &&
           schema.contains(keyword.name);
  });
}

class CaseFinder {
 public:
  explicit CaseFinder(const JsonSchema& schema) : schema_(schema) {}

  Result<std::vector<SchemaList>> find(const SchemaList& all) {
    TRY(choose(all, {}, {}));
    return std::move(found_);
  }

 private:
  /// The alternatives of one choice, each with the schemas that it adds.
  using Choice = std::vector<SchemaList>;

  /// `next`: schemas that must hold and have not been visited; `taken`: visited ones; `open`: choices to be made.
  Result<void> choose(SchemaList next, SchemaList taken, std::vector<Choice> open) {
    for (size_t at = 0; at < next.size(); ++at) {
      const OrderedJson& schema = *next[at];
      if (++steps_ > kMaxCaseSteps) return too_many(schema);
      if (schema.is_boolean()) {
        if (!schema.get<bool>()) return {};
        continue;
      }
      if (std::ranges::find(taken, &schema) != taken.end()) continue;
      taken.push_back(&schema);
      if (const OrderedJson* target = schema_.target(schema)) next.push_back(target);
      if (const OrderedJson* all = find_keyword(schema, "allOf"))
        for (const OrderedJson& each : *all)
          next.push_back(&each);
      for (const char* keyword : {"anyOf", "oneOf"}) {
        const OrderedJson* ways = find_keyword(schema, keyword);
        if (ways == nullptr) continue;
        Choice& choice = open.emplace_back();
        for (const OrderedJson& each : *ways)
          choice.push_back({&each});
      }
      add_condition(schema, open);
    }
    if (open.empty()) {
      if (std::ranges::find(found_, taken) != found_.end()) return {};
      if (found_.size() == kMaxCases) return too_many(taken.empty() ? schema_.root() : *taken.front());
      found_.push_back(std::move(taken));
      return {};
    }
    const Choice choice = std::move(open.front());
    open.erase(open.begin());
    for (const SchemaList& way : choice)
      TRY(choose(way, taken, open));
    return {};
  }

  static void add_condition(const OrderedJson& schema, std::vector<Choice>& open) {
    const OrderedJson* condition = find_keyword(schema, "if");
    const OrderedJson* then = find_keyword(schema, "then");
    const OrderedJson* otherwise = find_keyword(schema, "else");
    if (condition == nullptr || (then == nullptr && otherwise == nullptr)) return;
    SchemaList holds = {condition};
    if (then != nullptr) holds.push_back(then);
    open.push_back({std::move(holds), otherwise == nullptr ? SchemaList() : SchemaList{otherwise}});
  }

  Error too_many(const OrderedJson& schema) const {
    return schema_.refuse(ErrorKind::invalid, schema,
                          fmt::format("more than {} combinations of alternatives for one value", kMaxCases));
  }

  const JsonSchema& schema_;
  std::vector<SchemaList> found_;
  size_t steps_ = 0;
};

constexpr std::array<std::pair<std::string_view, Types>, 7> kTypeNames = {{{"null", kNull},
                                                                           {"boolean", kBoolean},
                                                                           {"string", kString},
                                                                           {"array", kArray},
                                                                           {"object", kObject},
                                                                           {"integer", kWhole},
                                                                           {"number", kNumber}}};

}  // namespace

Result<std::vector<SchemaList>> schema_cases(const JsonSchema& schema, const SchemaList& all) {
  return CaseFinder(schema).find(all);
}

SchemaList canonical_list(const JsonSchema& schema, const SchemaList& all) {
  SchemaList list;
  for (const OrderedJson* each : all) {
    while (is_bare(*each) && schema.target(*each) != nullptr)
      each = schema.target(*each);
    if (!is_bare(*each)) list.push_back(each);
  }
  std::ranges::sort(list, std::less<>());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

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
