#include "runtime/text/output_schema.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace dspack::output_schema_test {

using namespace dspack::runtime;

namespace {

TEST_CASE("schema: what is left to chance is written out") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"type":"object"})", R"({"type":"object","additionalProperties":true})"},
      {R"({"type":"array"})", R"({"type":"array","items":true})"},
      {R"({"properties":{"a":{"type":"string","title":"A"}},"required":["a"]})",
       R"({"properties":{"a":{"type":"string","title":"A"}},"required":["a"],"type":"object","additionalProperties":false})"},
      {R"({"anyOf":[{"type":"array","prefixItems":[{}]},{"type":"null"}],"default":null})",
       R"({"anyOf":[{"type":"array","prefixItems":[{}],"items":false},{"type":"null"}],"default":null})"},
      {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}}})",
       R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}},"additionalProperties":false}}})"},
      {R"({"type":"string","enum":["a"]})", R"({"enum":["a"]})"},
      {"true", "true"}};
  for (const auto& [given, wanted] : cases) {
    CAPTURE(given);
    const auto made = accept_schema(OrderedJson::parse(given));
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    CHECK(made->dump() == wanted);
  }
}

TEST_CASE("schema: references lead to schemas, wherever in the schema they are") {
  for (const char* given :
       {R"({"$ref":"#/$defs/a~1b~0c","$defs":{"a/b~c":{"type":"string","pattern":"^[{9999]\\{9999$"}}})",
        R"({"type":"object","properties":{"a":{"type":["string","null"]},"b":{"$ref":"#/properties/a"}}})",
        R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"array","items":{"anyOf":[{"type":"null"},
            {"$ref":"#/$defs/n/items/anyOf/0"},{"$ref":"#"}]}}}})",
        R"({"oneOf":[{"type":"string"},{"type":["integer","null"]},{"enum":[true]},
            {"type":"object","required":["kind"],"properties":{"kind":{"const":"a"}}},{"$ref":"#/$defs/b"}],
            "$defs":{"b":{"type":"object","required":["kind"],"properties":{"kind":{"enum":["b","c"]}}}}})"}) {
    CAPTURE(given);
    const auto made = accept_schema(OrderedJson::parse(given));
    CHECK_MESSAGE(made, (made ? "" : made.error().message));
  }
}

TEST_CASE("schema: what an answer cannot be held to is refused, with its place") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"5", "is not a schema"},
      {"false", "is not a schema"},
      {R"({"type":"object","properties":{"a":{"not":{}}}})", "/properties/a: \"not\""},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","contains":{}})", "contains"},
      {R"({"type":"number","multipleOf":2})", "multipleOf"},
      {R"({"anyOf":[{}],"properties":{}})", "beside other keywords"},
      {R"({"$ref":"#/$defs/a","minLength":2,"$defs":{"a":{}}})", "beside other keywords"},
      {R"({"$ref":"https://example.org/schema"})", "outside"},
      {R"({"$ref":"#/$defs/b","$defs":{"a":{}}})", "leads nowhere"},
      {R"({"$ref":"#~x"})", "leads nowhere"},
      {R"({"$ref":"#"})", "leads to no schema"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "leads to no schema"},
      {R"({"allOf":[{},{}]})", "allOf"},
      {R"({"enum":[]})", "lists nothing"},
      {R"({"type":"integer","enum":["a"]})", "not of its \"type\""},
      {R"({"minLength":3})", "without \"type\""},
      {R"({"type":"string","pattern":"a","maxLength":3})", "more than one"},
      {R"({"type":"string","maxLength":10000000})", "maxLength"},
      {R"({"type":"array","maxItems":-1})", "maxItems"},
      {R"({"type":"object","required":["a"]})", "required"},
      {R"({"type":"object","properties":5})", "holds no schemas"},
      {R"({"$ref":"#/default","default":{"type":"array"}})", "leads to no schema"},
      {R"({"type":"array","items":{"$ref":"#/enum/0"},"$defs":{"a":{"enum":[{}]}}})", "leads nowhere"},
      {R"({"$ref":"#/$defs/a/enum/0","$defs":{"a":{"enum":[{"type":"string"}]}}})", "leads to no schema"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/examples/0"}},"examples":[{}]})", "leads to no schema"},
      {R"({"type":["string","null","string"]})", "twice"},
      {R"({"type":[]})", "lists nothing"},
      {R"({"type":"color"})", "\"color\""},
      {R"({"type":["string",{"type":"string"}]})", "\"type\""},
      {R"({"type":"string","pattern":"^a{4294967297}$"})", "repeats more than"},
      {R"({"type":"string","pattern":"^(a{1,20}b{2,99999}){3}$"})", "repeats more than"},
      {R"({"type":"string","pattern":"^.{0,4000}x.{0,4000}$"})", "states"},
      {R"({"type":"string","pattern":"^((a{20}){20}){20}$"})", "states"},
      {R"json({"type":"string","pattern":"a(?=b)"})json", "look-around"},
      {R"json({"type":"string","pattern":"(a)\\1"})json", R"("\1")"},
      {R"({"type":"string","pattern":"a^b"})", "after something"},
      {R"json({"type":"string","pattern":"(a$|b)"})json", "anchored"},
      {R"({"type":"string","pattern":"[]"})", "no string has"},
      {R"({"type":"string","pattern":"(a"})", "not closed"},
      {R"({"type":"string","format":"color"})", "\"format\": \"color\""},
      {R"({"type":"string","minLength":3,"maxLength":2})", "above"},
      {R"({"type":"number","minimum":2,"exclusiveMaximum":2})", "leave no number"},
      {R"({"type":"integer","minimum":0.1,"maximum":0.9})", "leave no number"},
      {R"({"type":"number","minimum":1e300})", "digits"},
      {R"({"type":"integer","multipleOf":9973})", "multipleOf"},
      {R"({"type":"object","properties":{"a":true},"minProperties":2})", "no object"},
      {R"({"type":"object","minProperties":2})", "names are free"},
      {R"({"type":"object","properties":{"a":true},"propertyNames":{"maxLength":3}})", "propertyNames"},
      {R"({"type":"object","propertyNames":{"type":"integer"}})", "enum\" of strings"},
      {R"({"type":"object","patternProperties":{"a":true,"b":true}})", "several patterns"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "\"oneOf\" of schemas 0 and 1"},
      {R"({"oneOf":[{"type":"string"},{"properties":{}}]})", "may both be of"},
      {R"({"anyOf":[{"type":"null"},{"$ref":"#"}]})", "leads to itself"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}})",
       "leads to itself"},
      {R"({"type":"object","patternProperties":{"x{4097,}":true}})", "repeats more than"}};
  for (const auto& [given, reason] : cases) {
    CAPTURE(given);
    const auto made = accept_schema(OrderedJson::parse(given));
    REQUIRE(!made);
    CHECK_MESSAGE(made.error().message.find(reason) != std::string::npos, made.error().message);
  }
}

TEST_CASE("schema: size and depth are bounded") {
  OrderedJson deep = {{"type", "string"}};
  for (size_t i = 0; i <= kMostSchemaDepth; ++i)
    deep = {{"type", "array"}, {"items", deep}};
  OrderedJson wide = {{"type", "object"}};
  OrderedJson values = {{"enum", OrderedJson::array()}};
  OrderedJson patterns = {{"type", "object"}};
  for (size_t i = 0; i < kMostSchemas; ++i)
    wide["properties"]["p" + std::to_string(i)] = true,
                             wide["properties"]["q" + std::to_string(i)] = OrderedJson::object();
  for (size_t i = 0; i <= kMostValues; ++i)
    values["enum"].push_back(i);
  for (size_t i = 0; i <= kMostPatterns; ++i)
    patterns["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"pattern", "a"}};
  const OrderedJson long_pattern = {{"type", "string"}, {"pattern", std::string(kMostPatternBytes + 1, 'a')}};
  const OrderedJson long_key = {{"type", "object"}, {"properties", {{std::string(kMostSchemaBytes, 'k'), true}}}};
  for (const OrderedJson& each : {deep, wide, values, patterns, long_pattern, long_key}) {
    const auto made = accept_schema(each);
    REQUIRE(!made);
    CHECK_MESSAGE(made.error().message.find("more than") != std::string::npos, made.error().message);
  }
}

}  // namespace
}  // namespace dspack::output_schema_test
