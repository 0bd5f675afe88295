#include "runtime/text/schema_keywords.h"

#include <algorithm>
#include <array>
#include <utility>

namespace dspack::runtime {
namespace {

using enum SchemaKeyword::Treatment;

constexpr std::array kKeywords = {
    SchemaKeyword{"type", 0, held, "one, or a list of several"},
    SchemaKeyword{"enum", 0, held, "the values that are of everything beside it"},
    SchemaKeyword{"const", 0, held, "likewise"},
    SchemaKeyword{"$ref", 0, held, "to places within the schema, also recursive; what stands beside it holds as well"},
    SchemaKeyword{"allOf", 0, held},
    SchemaKeyword{"anyOf", 0, held, "up to 256 combinations for one value"},
    SchemaKeyword{"oneOf", 0, held, "that no second one holds is checked at the end"},
    SchemaKeyword{"if", 0, held, "with `then`; that it does not hold where `else` was chosen is checked at the end"},
    SchemaKeyword{"then", 0, held},
    SchemaKeyword{"else", 0, held},
    SchemaKeyword{"not", 0, checked},
    SchemaKeyword{"properties", kObject, held, "in this order; there are no others, unless the schema says so"},
    SchemaKeyword{"required", kObject, held, "also of names that `properties` lacks"},
    SchemaKeyword{"additionalProperties", kObject, held, "of names that are not listed, in no spelling"},
    SchemaKeyword{"patternProperties", kObject, held, "for a name that has two patterns, checked at the end"},
    SchemaKeyword{"propertyNames", kObject, held},
    SchemaKeyword{"minProperties", kObject, held, "up to 4,096; a name that comes twice is found at the end"},
    SchemaKeyword{"maxProperties", kObject, held, "up to 4,096"},
    SchemaKeyword{"dependentRequired", kObject, checked},
    SchemaKeyword{"dependentSchemas", kObject, checked},
    SchemaKeyword{"dependencies", kObject, checked, "draft 7's"},
    SchemaKeyword{"items", kArray, held, "draft 7's list is `prefixItems`"},
    SchemaKeyword{"prefixItems", kArray, held, "there are no items behind them, unless the schema says so"},
    SchemaKeyword{"additionalItems", kArray, held, "draft 7's"},
    SchemaKeyword{"minItems", kArray, held, "up to 4,096"},
    SchemaKeyword{"maxItems", kArray, held, "up to 4,096"},
    SchemaKeyword{"uniqueItems", kArray, checked},
    SchemaKeyword{"contains", kArray, checked},
    SchemaKeyword{"minContains", kArray, checked},
    SchemaKeyword{"maxContains", kArray, checked},
    SchemaKeyword{
        "minLength", kString, held,
        "characters of the value, up to 1,048,576; beside a pattern that is no `^[a-z]+$`, and a format, checked"},
    SchemaKeyword{"maxLength", kString, held, "likewise"},
    SchemaKeyword{
        "pattern", kString, held,
        "found in the value, ECMA-262's; checked at the end where it has look-around, back references, `\\b` or "
        "anchors within, and where there is another one"},
    SchemaKeyword{"format", kString, held, "those below; beside a pattern checked"},
    SchemaKeyword{"minimum", kNumber, held, "compared as decimals of up to 40 digits"},
    SchemaKeyword{"maximum", kNumber, held, "likewise"},
    SchemaKeyword{"exclusiveMinimum", kNumber, held, "likewise"},
    SchemaKeyword{"exclusiveMaximum", kNumber, held, "likewise"},
    SchemaKeyword{"multipleOf", kNumber, held,
                  "of whole numbers up to 1,024, or between bounds that leave 1,000 of them; others checked"},
    SchemaKeyword{"$defs", 0, remark, "schemas for `$ref`"},
    SchemaKeyword{"definitions", 0, remark, "likewise"},
    SchemaKeyword{"$schema", 0, remark, "of drafts 4 to 2020-12, read alike"},
    SchemaKeyword{"$id", 0, remark, "below the root refused"},
    SchemaKeyword{"title", 0, remark},
    SchemaKeyword{"description", 0, remark},
    SchemaKeyword{"default", 0, remark},
    SchemaKeyword{"examples", 0, remark},
    SchemaKeyword{"deprecated", 0, remark},
    SchemaKeyword{"readOnly", 0, remark},
    SchemaKeyword{"writeOnly", 0, remark},
    SchemaKeyword{"discriminator", 0, remark, "OpenAPI's; so is every name that is not in this table"},
    SchemaKeyword{"contentEncoding", 0, remark},
    SchemaKeyword{"contentMediaType", 0, remark},
    SchemaKeyword{"$comment", 0, remark},
    SchemaKeyword{"unevaluatedItems", 0, refused},
    SchemaKeyword{"unevaluatedProperties", 0, refused},
    SchemaKeyword{"$dynamicRef", 0, refused},
    SchemaKeyword{"$recursiveRef", 0, refused},
};

constexpr std::array<std::pair<SchemaKeyword::Treatment, std::string_view>, 4> kNames = {
    {{held, "held"}, {checked, "checked"}, {remark, "remark"}, {refused, "refused"}}};

}  // namespace

std::span<const SchemaKeyword> schema_keywords() {
  return kKeywords;
}

std::string_view to_string(SchemaKeyword::Treatment treatment) {
  return std::ranges::find(kNames, treatment, &std::pair<SchemaKeyword::Treatment, std::string_view>::first)->second;
}

}  // namespace dspack::runtime
