#include "runtime/text/json_schema.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/text/schema_grammar.h"

namespace dspack::json_schema_test {

using namespace dspack::runtime;

namespace {

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
    const auto made = schema_grammar(OrderedJson::parse(given));
    CHECK_MESSAGE(made, (made ? "" : made.error().message));
  }
}

TEST_CASE("schema: what an answer cannot be held to is refused, with its place") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"5", "is not a schema"},
      {"false", "no value is of it"},
      {R"({"type":"object","properties":{"a":{"not":5}}})", "/properties/a/not: is not a schema"},
      {R"({"type":"array","unevaluatedItems":false})", "unevaluatedItems"},
      {R"({"type":"object","properties":{"a":{"$id":"b"}}})", "/properties/a: \"$id\""},
      {R"({"type":"array","uniqueItems":1})", "uniqueItems"},
      {R"({"type":"array","contains":3})", "/contains: is not a schema"},
      {R"({"type":"number","multipleOf":0})", "not above zero"},
      {R"({"type":"number","minimum":"1"})", "\"minimum\" is not a number"},
      {R"({"type":"number","exclusiveMinimum":true})", "\"exclusiveMinimum\" is not a number"},
      {R"({"$ref":"https://example.org/schema"})", "outside"},
      {R"({"$ref":"#/components/schemas/X"})", "leads nowhere"},
      {R"({"$ref":"#/$defs/b","$defs":{"a":{}}})", "leads nowhere"},
      {R"({"$ref":"#~x"})", "leads nowhere"},
      {R"({"$ref":"#"})", "leads to itself"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "leads to itself"},
      {R"({"not":{"$ref":"#"}})", "leads to itself"},
      {R"({"anyOf":[{"type":"null"},{"$ref":"#"}]})", "leads to itself"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}})",
       "leads to itself"},
      {R"({"allOf":[]})", "holds no schemas"},
      {R"({"enum":[]})", "lists nothing"},
      {R"({"type":"integer","enum":["a"]})", "no value is of it"},
      {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "no value is of it"},
      {R"({"type":"object","properties":{"a":{"type":"string","enum":[1]}},"required":["a"]})",
       "/properties/a: no value"},
      {R"({"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]})", "no value is of it"},
      {R"({"type":"array","items":{"$ref":"#"},"minItems":1})", "no value is of it"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","prefixItems":[{"$ref":"#/$defs/b"}],"minItems":1},
          "b":{"type":"object","properties":{"c":{"$ref":"#/$defs/a"}},"required":["c"]}}})",
       "no value is of it"},
      {R"({"type":"string","maxLength":10000000})", "maxLength"},
      {R"({"type":"array","maxItems":-1})", "maxItems"},
      {R"({"type":"object","properties":5})", "holds no schemas"},
      {R"({"type":"object","required":"a"})", "not a list of names"},
      {R"({"type":"object","dependentRequired":{"a":["b",1]}})", "lists of names"},
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
      {R"json({"type":"string","pattern":"(?>a)(?=b)"})json", "kind of group"},
      {R"json({"type":"string","pattern":"a++(?=b)"})json", "quantifier of a quantifier"},
      {R"json({"type":"string","pattern":"[[:alpha:]](?=b)"})json", "[:"},
      {R"json({"type":"string","pattern":"\\Qa\\E(?=b)"})json", R"("\Q")"},
      {R"({"type":"string","pattern":"[]"})", "no string has"},
      {R"({"type":"string","pattern":"(a"})", "not understood"},
      {R"({"type":"string","format":"color"})", "\"format\": \"color\""},
      {R"({"type":"string","minLength":3,"maxLength":2})", "no value is of it"},
      {R"({"type":"number","minimum":2,"exclusiveMaximum":2})", "no value is of it"},
      {R"({"type":"integer","minimum":0.1,"maximum":0.9})", "leave no number"},
      {R"({"type":"number","minimum":1e300})", "digits"},
      {R"({"type":"object","properties":{"a":true},"minProperties":2})", "no value is of it"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "no value is of it"},
      {R"({"type":"object","propertyNames":{"type":"integer"},"minProperties":1})", "no value is of it"},
      {R"json({"type":"object","patternProperties":{"a(?=b)":true}})json", "names of this pattern"},
      {R"({"type":"object","patternProperties":{"x{4097,}":true}})", "repeats more than"}};
  for (const auto& [given, reason] : cases) {
    CAPTURE(given);
    const auto made = schema_grammar(OrderedJson::parse(given));
    REQUIRE(!made);
    CHECK_MESSAGE(made.error().message.find(reason) != std::string::npos, made.error().message);
  }
}

TEST_CASE("schema: size and depth are bounded") {
  OrderedJson deep = {{"type", "string"}};
  for (size_t i = 0; i <= kMaxSchemaDepth; ++i)
    deep = {{"type", "array"}, {"items", deep}};
  OrderedJson wide = {{"type", "object"}};
  OrderedJson values = {{"enum", OrderedJson::array()}};
  OrderedJson patterns = {{"type", "object"}};
  for (size_t i = 0; i < kMaxSchemas; ++i)
    wide["properties"]["p" + std::to_string(i)] = true,
                             wide["properties"]["q" + std::to_string(i)] = OrderedJson::object();
  for (size_t i = 0; i <= kMaxValues; ++i)
    values["enum"].push_back(i);
  for (size_t i = 0; i <= kMaxPatterns; ++i)
    patterns["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"pattern", "a"}};
  const OrderedJson long_pattern = {{"type", "string"}, {"pattern", std::string(kMaxSchemaPatternBytes + 1, 'a')}};
  const OrderedJson long_key = {{"type", "object"}, {"properties", {{std::string(kMaxSchemaBytes, 'k'), true}}}};
  OrderedJson ways = {{"allOf", OrderedJson::array()}};
  for (int i = 0; i < 12; ++i) {
    OrderedJson choice = OrderedJson::array();
    for (int way = 0; way < 4; ++way)
      choice.push_back({{"required", {"p" + std::to_string(4 * i + way)}}});
    ways["allOf"].push_back({{"anyOf", choice}});
  }
  for (const OrderedJson& each : {deep, wide, values, patterns, long_pattern, long_key, ways}) {
    const auto made = schema_grammar(each);
    REQUIRE(!made);
    CHECK_MESSAGE(made.error().message.find("more than") != std::string::npos, made.error().message);
  }
}

}  // namespace
}  // namespace dspack::json_schema_test
