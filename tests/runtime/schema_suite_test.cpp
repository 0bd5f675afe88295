// The official suite of JSON Schema: each schema is taken or refused by name; what is taken accepts no wrong instance,
// and the check of finished answers says of each what the suite says.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/schema_grammar.h"
#include "runtime/text/schema_validator.h"
#include "runtime/text/tool_syntax.h"
#include "tests/runtime/support/grammar_lab.h"

namespace dspack::runtime::schema_suite_test {
namespace {

struct Count {
  size_t taken = 0, refused = 0, instances = 0, narrower = 0, wider = 0;
};

/// What is read in another way than the suite does, on purpose. Formats are asserted, and those that are written daily:
/// right instances may be refused, and the main folder has them for remarks. What a text contains is a remark in draft
/// 2020-12, in draft 7 too. Keywords beside "$ref" hold in draft 7, too.
bool is_otherwise(const OrderedJson& group, bool is_valid) {
  const auto file = group["file"].get<std::string>();
  if (file.starts_with("optional/format/")) return is_valid;
  return file == "format" || file == "optional/content" || group["description"] == "ref overrides any sibling keywords";
}

OrderedJson read_suite(const std::string& name) {
  std::ifstream file(test::tiny_folder().parent_path() / "json_schema" / (name + ".json"), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto suite = parse_ordered_json(text, format::kConversationDocument);
  REQUIRE_MESSAGE(suite, (suite ? "" : suite.error().message));
  return *std::move(suite);
}

Count run(const std::string& draft) {
  const test::GrammarLab lab;
  Count count;
  for (const OrderedJson& each : read_suite(draft)) {
    const OrderedJson& schema = each["schema"];
    const auto name = each["file"].get<std::string>() + ": " + each["description"].get<std::string>();
    CAPTURE(name);
    const auto form = schema_form(schema);
    if (!form) {
      ++count.refused;
      CHECK((form.error().kind == ErrorKind::unsupported || form.error().kind == ErrorKind::invalid));
      CHECK_MESSAGE(form.error().message.find("the schema") != std::string::npos, form.error().message);
      continue;
    }
    ++count.taken;
    const auto constraint = ConstraintCompiler::is_available() ? lab.constraint(*form) : nullptr;
    for (const OrderedJson& instance : each["tests"]) {
      ++count.instances;
      const std::string json = python_json(instance["data"], true);
      const bool is_valid = instance["valid"].get<bool>();
      CAPTURE(json);
      const auto fault = schema_fault(json, schema);
      if (!is_otherwise(each, is_valid)) CHECK_MESSAGE(fault.has_value() != is_valid, fault.value_or("no fault"));
      if (constraint == nullptr) continue;
      const bool may_be = lab.may_be(*constraint, json);
      count.narrower += is_valid && !may_be ? 1 : 0;
      count.wider += !is_valid && may_be ? 1 : 0;
    }
  }
  return count;
}

void check(const std::string& draft, const Count& wanted) {
  const Count count = run(draft);
  MESSAGE(draft, ": ", count.taken, " taken, ", count.refused, " refused, ", count.instances, " instances, ",
          count.narrower, " of them right and not written, ", count.wider, " wrong, written and found");
  CHECK(count.taken == wanted.taken);
  CHECK(count.refused == wanted.refused);
  CHECK(count.instances == wanted.instances);
  if (!ConstraintCompiler::is_available()) return;
  CHECK(count.narrower == wanted.narrower);
  CHECK(count.wider == wanted.wider);
}

TEST_CASE("schema suite: draft 2020-12") {
  check("draft2020-12", {.taken = 280, .refused = 158, .instances = 1515, .narrower = 417, .wider = 105});
}

TEST_CASE("schema suite: draft 7") {
  check("draft7", {.taken = 261, .refused = 50, .instances = 1347, .narrower = 358, .wider = 76});
}

TEST_CASE("schema suite: what generators write is taken, right values can be written, and wrong ones are found") {
  const test::GrammarLab lab;
  for (const OrderedJson& each : read_suite("daily")) {
    const auto name = each["from"].get<std::string>() + ": " + each["name"].get<std::string>();
    CAPTURE(name);
    const auto form = schema_form(each["schema"]);
    REQUIRE_MESSAGE(form, (form ? "" : form.error().message));
    const auto constraint = ConstraintCompiler::is_available() ? lab.constraint(*form) : nullptr;
    for (const OrderedJson& value : each["right"]) {
      const std::string json = python_json(value, true);
      CAPTURE(json);
      const auto fault = schema_fault(json, each["schema"]);
      CHECK_MESSAGE(!fault, fault.value_or(""));
      if (constraint != nullptr) CHECK(lab.may_be(*constraint, json));
    }
    for (const OrderedJson& value : each["wrong"]) {
      const std::string json = python_json(value, true);
      CAPTURE(json);
      CHECK((schema_fault(json, each["schema"]) || (constraint != nullptr && !lab.may_be(*constraint, json))));
    }
  }
}

TEST_CASE("schema suite: an answer of ten thousand dates can be checked, and one of hopeless patterns ends") {
  const OrderedJson dates = OrderedJson::parse(R"({"type":"array","items":{"type":"string","format":"date"}})");
  OrderedJson answer = OrderedJson::array();
  for (int i = 0; i < 10'000; ++i)
    answer.push_back("2024-02-29");
  const auto none = schema_fault(answer.dump(), dates);
  CHECK_MESSAGE(!none, none.value_or(""));
  answer.back() = "2023-02-29";
  CHECK(schema_fault(answer.dump(), dates).value_or("").find("/9999") != std::string::npos);
  const OrderedJson hopeless = OrderedJson::parse(R"json({"type":"array","items":{"pattern":"^(?=(a+)+$)a"}})json");
  for (const size_t count : {1U, 2'000U}) {
    const OrderedJson each(std::vector<std::string>(count, std::string(40, 'a') + "c"));
    CHECK(schema_fault(each.dump(), hopeless).value_or("").find("too long") != std::string::npos);
  }
}

}  // namespace
}  // namespace dspack::runtime::schema_suite_test
