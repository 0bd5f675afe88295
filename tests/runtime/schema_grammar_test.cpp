// Which texts answers of a schema may be: tables of schemas with texts that are and that are not of them.
#include "runtime/text/schema_grammar.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/tool_syntax.h"
#include "tests/runtime/support/grammar_lab.h"

namespace dspack::runtime::schema_grammar_test {
namespace {

struct Case {
  std::string schema;
  std::vector<std::string> right, wrong;
};

OrderedJson form_of(const std::string& schema) {
  const auto parsed = parse_ordered_json(schema, format::kConversationDocument);
  REQUIRE(parsed);
  const auto form = schema_form(*parsed);
  REQUIRE_MESSAGE(form, (form ? "" : form.error().message));
  return *form;
}

void check(const std::vector<Case>& cases) {
  if (!ConstraintCompiler::is_available()) {
    MESSAGE("SKIPPED: this build has no xgrammar (scripts/xgrammar)");
    return;
  }
  const test::GrammarLab lab;
  for (const auto& [schema, right, wrong] : cases) {
    CAPTURE(schema);
    const auto constraint = lab.constraint(form_of(schema));
    for (const std::string& text : right) {
      CAPTURE(text);
      CHECK(lab.may_be(*constraint, text));
    }
    for (const std::string& text : wrong) {
      CAPTURE(text);
      CHECK_FALSE(lab.may_be(*constraint, text));
    }
  }
}

/// So many letters as a JSON string.
std::string letters(size_t count) {
  return '"' + std::string(count, 'x') + '"';
}

TEST_CASE("schema grammar: bounds of strings count the characters of their values, and their texts are JSON") {
  check({{R"({"type":"string","maxLength":3})",
          {R"("abc")", R"("\n\"x")", R"("")", R"("\u00e9ab")", "\"é日本\""},
          {R"("abcd")", "\"\n\"", R"("\")", R"("\ud800")"}},
         {R"({"type":"string","minLength":2})", {R"("ab")", R"("\\\\")", letters(300)}, {R"("a")", R"("\\")", R"("")"}},
         {R"({"type":"string","minLength":40,"maxLength":100})",
          {letters(40), letters(41), letters(64), letters(99), letters(100)},
          {letters(0), letters(39), letters(101), letters(140)}},
         {R"({"type":"string","maxLength":100000})", {letters(0), letters(2000)}, {}}});
  // Both ways of reading, at every length around the ends of pieces.
  std::vector<Case> all;
  for (const size_t most : {1U, 15U, 16U, 31U, 32U, 33U, 47U, 48U, 63U, 64U, 65U, 77U}) {
    Case each{.schema = R"({"type":"string","maxLength":)" + std::to_string(most) + "}", .right = {}, .wrong = {}};
    for (size_t length = 0; length <= 80; ++length)
      (length <= most ? each.right : each.wrong).push_back(letters(length));
    all.push_back(std::move(each));
  }
  check(all);
}

TEST_CASE("schema grammar: patterns speak of values, are found anywhere, and their texts are JSON") {
  check({{R"({"type":"string","pattern":"^\"x\"$"})", {R"("\"x\"")"}, {R"(""x"")"}},
         {R"({"type":"string","pattern":"^\\\\$"})", {R"("\\")"}, {R"("\")"}},
         {R"({"type":"string","pattern":"^a\\\\b$"})", {R"("a\\b")"}, {R"("a\b")"}},
         {R"({"type":"string","pattern":"^\\S$"})", {R"("a")", R"("\"")", R"("\\")"}, {"\"\"\"", R"("\n")", R"(" ")"}},
         {R"({"type":"string","pattern":"^[\\x00-\\x1f]$"})", {R"("\n")", R"("\u0001")"}, {"\"\n\"", R"("a")"}},
         {R"({"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":4})",
          {R"("ab")", R"("abcd")"},
          {R"("a")", R"("abcde")"}},
         {R"({"type":"string","pattern":"^\\d{3,}$","maxLength":5})",
          {R"("123")", R"("12345")"},
          {R"("12")", R"("123456")"}},
         {R"({"type":"string","pattern":"^[a-z]*$","maxLength":9999})", {R"("")", letters(300)}, {R"("A")"}},
         {R"({"type":"string","pattern":"x"})", {R"("x")", R"("axb")"}, {R"("ab")"}},
         {R"({"type":"string","pattern":"^a|b$"})", {R"("ac")", R"("cb")"}, {R"("ca")"}},
         {R"json({"type":"string","pattern":"^(?:a[0-9]+)?$"})json", {R"("")", R"("a12")"}, {R"("1")", R"("a")"}},
         {R"({"type":"string","pattern":"^[^a-c\\d]{2,}$"})", {R"("de")"}, {R"("d")", R"("da")", R"("d1")"}},
         {R"({"type":"string","format":"date"})",
          {R"("2024-02-29")", R"("2023-12-31")"},
          {R"("2023-02-29")", R"("2024-02-30")", R"("1900-02-29")", R"("2024-13-01")"}},
         {R"({"type":"string","format":"uri"})", {R"("https://example.org:80/a?b=c#d")"}, {R"("a b")"}},
         {R"({"type":"string","format":"json-pointer"})", {R"("/a/\"~1")", R"("")"}, {R"("/~2")", "\"/\"\""}}});
}

TEST_CASE("schema grammar: numbers lie within their bounds, compared as decimals") {
  check({{R"({"type":"number","minimum":1e-7,"maximum":2e-7})",
          {"0.0000001", "0.00000015", "0.0000002"},
          {"0", "0.00000009", "0.00000021", "0.000000200001"}},
         {R"({"type":"number","exclusiveMinimum":-2.5,"maximum":10})",
          {"-2.4999", "-2", "0", "9.99", "10", "10.0"},
          {"-2.5", "-2.50", "-0", "10.01", "17", "100"}},
         {R"({"type":"integer","minimum":-3,"exclusiveMaximum":18446744073709551617})",
          {"-3", "0", "18446744073709551616"},
          {"-4", "18446744073709551617", "1.0"}},
         {R"({"type":"integer","minimum":2.5,"maximum":1.5e1})", {"3", "15"}, {"2", "16"}},
         {R"({"type":"integer","multipleOf":7})", {"0", "-21", "700"}, {"15", "701"}},
         {R"({"type":"integer","multipleOf":6,"minimum":-20,"maximum":20})", {"-18", "0", "18"}, {"-24", "20"}},
         {R"({"type":"number","multipleOf":2.0,"minimum":0,"maximum":9})", {"0", "4"}, {"3", "4.5", "10"}},
         {R"({"type":"number","multipleOf":0.5,"minimum":0,"maximum":9})", {"0.5", "4"}, {"10"}}});
  std::vector<Case> all;
  for (int least = -12; least <= 12; least += 3) {
    for (int most = least; most <= 120; most += 33) {
      Case each{.schema = R"({"type":"integer","minimum":)" + std::to_string(least) + R"(,"maximum":)" +
                          std::to_string(most) + "}",
                .right = {},
                .wrong = {}};
      for (int value = -20; value <= 130; ++value)
        (value >= least && value <= most ? each.right : each.wrong).push_back(std::to_string(value));
      all.push_back(std::move(each));
    }
  }
  check(all);
}

TEST_CASE("schema grammar: objects and arrays have what they must and no more than they may") {
  check(
      {{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"]})",
        {R"({"a":1,"b":"x"})", R"({ "b" : "" })"},
        {R"({"a":1})", "{}", R"({"b":"x","c":1})", R"({"b":"x",})"}},
       {R"({"type":"object","properties":{"a":true,"ab":true},"additionalProperties":{"type":"integer"}})",
        {R"({"c":1})", R"({"a":"x","abc":3})", R"({"":1})", R"({"ab":"s","aa":2})", "{}"},
        {R"({"c":"s"})", R"({"a":1,"a":2})", R"({"ab":"x","\u0061":3})"}},
       {R"({"type":"object","properties":{"a":true,"b":true,"c":true},"minProperties":2,"maxProperties":2})",
        {R"({"a":1,"b":2})", R"({"b":1,"c":2})"},
        {R"({"a":1})", R"({"a":1,"b":2,"c":3})", "{}"}},
       {R"({"type":"object","additionalProperties":{"type":"integer"},"maxProperties":2})",
        {"{}", R"({"a":1,"b":2})"},
        {R"({"a":1,"b":2,"c":3})"}},
       {R"({"type":"object","patternProperties":{"^x":{"type":"integer"}}})",
        {R"({"xa":1,"x\"":2})", "{}"},
        {R"({"a":1})"}},
       {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"}})", {R"({"ab":null})"}, {R"({"A":1})"}},
       {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
        {"[1]", "[ 1 , 2 ]", "[1,2,3]"},
        {"[]", "[1,2,3,4]", "[1,]"}},
       {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"boolean"},"minItems":1})",
        {R"(["a"])", R"(["a",1,true])"},
        {"[]", R"(["a",1,1])", R"([1])"}},
       {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}}})",
        {R"({"next":{"next":null}})"},
        {R"({"next":1})"}},
       {R"({"enum":["a\"b",{"x":[1,2]},1.5,null]})",
        {R"("a\"b")", R"({"x":[1,2]})", "1.5", "null"},
        {"1.50", "\"a\"b\""}},
       {"{}", {R"({"a":[1,{"b":null}]})", "1e5", "\"\\u00e9\""}, {"[1,2", "\"\\ud800\"", "01"}}});
}

}  // namespace
}  // namespace dspack::runtime::schema_grammar_test
