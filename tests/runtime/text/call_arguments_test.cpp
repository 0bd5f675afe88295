#include "runtime/text/call_arguments.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace dspack::call_arguments_test {

using namespace dspack::runtime;

namespace {

/// The argument of a tool that the text stands for.
std::string argument(const std::string& name, const std::string& text) {
  static const OrderedJson kParameters = {
      {"type", "object"},
      {"properties",
       OrderedJson::parse(R"({"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"},
                           "size": {"type": "number"}, "note": {"type": ["string", "null"]}, "tag": {"enum": ["1", "2"]},
                           "by": {"$ref": "#/$defs/name"}, "any": {}, "list": {"anyOf": [{"type": "array"},
                           {"type": "null"}]}, "flag": {"type": "boolean"}})")},
      {"$defs", {{"name", {{"type", "string"}}}}}};
  return "{" + json_string(name) + ":" + argument_value(text, kParameters, name) + "}";
}

}  // namespace

TEST_CASE("call arguments: a value is what the model wrote, by the tool's schema") {
  CHECK(argument("content", R"({"name": "x", "private": true})") ==
        R"({"content":"{\"name\": \"x\", \"private\": true}"})");
  CHECK(argument("content", "    return x\n") == R"({"content":"    return x\n"})");
  CHECK(argument("content", "10001") == R"({"content":"10001"})");
  CHECK(argument("content", " true ") == R"({"content":" true "})");
  CHECK(argument("content", "\"quoted\"") == R"({"content":"\"quoted\""})");
  CHECK(argument("content", "") == R"({"content":""})");
  CHECK(argument("tag", "1") == R"({"tag":"1"})");
  CHECK(argument("tag", " 1\n") == R"({"tag":"1"})");
  CHECK(argument("tag", " 3\n") == R"({"tag":" 3\n"})");
  CHECK(argument("mode", " 12\n") == R"({"mode":12})");
  CHECK(argument("mode", "123456789012345678901234567890") == R"({"mode":123456789012345678901234567890})");
  CHECK(argument("size", "1.10") == R"({"size":1.10})");
  CHECK(argument("size", "-0") == R"({"size":-0})");
  CHECK(argument("mode", "twelve") == R"({"mode":"twelve"})");
  CHECK(argument("mode", "1.5") == R"({"mode":1.5})");
  CHECK(argument("note", "null") == R"({"note":null})");
  CHECK(argument("note", "12") == R"({"note":"12"})");
  CHECK(argument("list", "[1,  2]") == R"({"list":[1,  2]})");
  CHECK(argument("flag", "true") == R"({"flag":true})");
  CHECK(argument("any", "3") == R"({"any":3})");
  CHECK(argument("any", "\"3\"") == R"({"any":"\"3\""})");
  CHECK(argument("unheard of", "{}") == R"({"unheard of":{}})");
  CHECK(argument("content",
                 "a\xff"
                 "b") ==
        "{\"content\":\"a\xef\xbf\xbd"
        "b\"}");
}

TEST_CASE(
    "call arguments: a schema that leads to itself, or branches without end, costs little and allows everything") {
  const auto ask = [](const char* parameters) {
    return R"({"a":)" + argument_value("1", OrderedJson::parse(parameters), "a") + "}";
  };
  CHECK(ask(R"({"properties": {"a": {"$ref": "#/properties/a"}}})") == R"({"a":1})");
  CHECK(ask(R"({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"$ref": "#/properties/a"}]}}})") ==
        R"({"a":1})");
  CHECK(ask(R"({"properties": {"a": {"$ref": "#/d"}}, "d": {"type": "string"}})") == R"({"a":"1"})");
  CHECK(ask(R"({"properties": {"a": {"$ref": "#/~"}}})") == R"({"a":1})");
  CHECK(ask(R"({"properties": {"a": {"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}}})") ==
        R"({"a":"1"})");
  CHECK(ask(R"({"properties": [1]})") == R"({"a":1})");
  CHECK(ask("true") == R"({"a":1})");
}

TEST_CASE("call arguments: a reference within the tool's schema is followed") {
  CHECK(argument("by", "12") == R"({"by":"12"})");
}

TEST_CASE("call arguments: what is called by one object of JSON, and with which text") {
  const auto call = read_written_call(R"( {"name": "f", "arguments" : {"a": [1.10, {"b": "}"}]} , "id": 3} )");
  REQUIRE(call);
  CHECK(call->name == "f");
  CHECK(call->arguments == R"({"a": [1.10, {"b": "}"}]})");
  CHECK(read_written_call(R"({"n\u0061me":"g","arguments":"{}"})")->name == "g");
  CHECK(read_written_call(R"({"arguments":7,"name":"g"})")->arguments == "7");
  for (const char* other : {"", "[]", "{}", "{\"name\": \"f\"}", "{\"arguments\": {}}",
                            "{\"name\": 1, \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}"}) {
    CAPTURE(other);
    CHECK_FALSE(read_written_call(other));
  }
  CHECK(is_json_object(" {\"a\": 1}\n"));
  CHECK_FALSE(is_json_object("[1]"));
  CHECK_FALSE(is_json_object("{\"a\": 1"));
}

}  // namespace dspack::call_arguments_test
