#include <doctest/doctest.h>

#include "format/json.h"

namespace dspack::json_test {

using namespace dspack;
using namespace dspack::format;

TEST_CASE("json: duplicate keys are refused, at any depth") {
  CHECK(parse_json(R"({"a":1,"b":{"a":2}})", kManifestDocument).has_value());
  CHECK(parse_json(R"({"a":1,"a":2})", kManifestDocument).error().message == "duplicate key \"a\"");
  CHECK(parse_json(R"({"x":[{"k":1,"k":1}]})", kManifestDocument).error().message == "duplicate key \"k\"");
  CHECK(parse_json(R"({"a":1,"\u0061":2})", kManifestDocument).error().message == "duplicate key \"a\"");
}

TEST_CASE("json: hostile nesting stops early") {
  const std::string deep(10'000'000, '[');
  CHECK(parse_json(deep, kManifestDocument).error().message == "nested deeper than 64 levels");
}

TEST_CASE("json: values are counted before they are kept, and bytes before they are read") {
  constexpr DocumentBounds kFew{"a note", 40, 7};
  CHECK(parse_json(R"({"a":[1,"x",{},[]]})", kFew).has_value());  // the object, its key, the list and its four
  const auto refused = parse_json(R"({"a":[1,"x",{},[],0]})", kFew);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(refused.error().message == "more than 7 keys and values, which is what a note may have");
  CHECK_FALSE(parse_json(R"({"a":1,"b":2,"c":3,"d":4})", kFew).has_value());
  CHECK(parse_json(std::string(41, ' '), kFew).error().message == "41 B; a note may have 40 B");
}

TEST_CASE("json: broken text is an error with a place, not an exception") {
  for (const char* text : {"", "{", "{\"a\":}", "[1,]", "{} x", "\xff", "{\"a\":\"\xc3\"}", "nul", "1e999999999"}) {
    const auto parsed = parse_json(text, kManifestDocument);
    CAPTURE(text);
    REQUIRE_FALSE(parsed.has_value());
    CHECK(parsed.error().kind == ErrorKind::invalid);
    CHECK(parsed.error().message.find("json.exception") == std::string::npos);
  }
}

TEST_CASE("json: a NUL byte is no end of the text") {
  using namespace std::string_view_literals;
  for (const std::string_view text : {"{}\0"sv, "{}\0{}"sv, "[1\0]"sv, "\0"sv, "{\"a\":\"\0\"}"sv}) {
    const auto parsed = parse_json(text, kManifestDocument);
    REQUIRE_FALSE(parsed.has_value());
    CHECK(parsed.error().message.starts_with("not valid JSON: a NUL byte at "));
  }
  CHECK(parse_json(R"({"a":"\u0000"})", kManifestDocument).has_value());
}

TEST_CASE("json: what stands before an error makes no long message") {
  const auto parsed = parse_json("[1]" + std::string(3000, ' ') + "x", kManifestDocument);
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().message.size() < 300);
  CHECK(parsed.error().message.find("not valid JSON: ") == 0);
}

TEST_CASE("json: equal values give equal bytes") {
  CHECK(canonical_json(*parse_json(R"({ "b":1, "a":[true, null] })", kManifestDocument)) ==
        R"({"a":[true,null],"b":1})");
}

TEST_CASE("json: fields are checked by kind") {
  const auto json = *parse_json(R"({"n":3,"neg":-1,"f":1.5,"s":"x","a":[],"o":{}})", kManifestDocument);
  CHECK(*json_uint(json, "n") == 3);
  CHECK_FALSE(json_uint(json, "neg").has_value());
  CHECK_FALSE(json_uint(json, "f").has_value());
  CHECK_FALSE(json_uint(json, "missing").has_value());
  CHECK(*json_string(json, "s") == "x");
  CHECK_FALSE(json_string(json, "n").has_value());
  CHECK(json_array(json, "a").has_value());
  CHECK_FALSE(json_array(json, "o").has_value());
  CHECK(json_object(json, "o").has_value());
  CHECK_FALSE(json_object(json, "a").has_value());
}

}  // namespace dspack::json_test
