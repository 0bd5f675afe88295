#include <doctest/doctest.h>
#include <fmt/format.h>

#include "format/json.h"
#include "reshard/plan/selection.h"

namespace dspack::selection_test {

using namespace dspack;
using reshard::parse_numbers;
using reshard::parse_selector;
using reshard::Selector;
using reshard::selector_of;

namespace {

format::TensorEntry tensor(std::string name) {
  format::TensorEntry entry;
  entry.place = format::parse_tensor_name(name);
  entry.name = std::move(name);
  return entry;
}

/// Whether a selector, as a command line has it, takes a tensor of this name.
bool takes(std::string_view selector, const std::string& name) {
  return reshard::fits(parse_selector(selector).value(), tensor(name));
}

std::string numbers(std::string_view text) {
  const auto parsed = parse_numbers(text);
  return parsed ? reshard::to_string(*parsed) : parsed.error().message;
}

std::string problem(const std::string& json) {
  const auto selectors = reshard::selectors_of(format::parse_json(json, format::kManifestDocument).value());
  return selectors ? "none" : selectors.error().message;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

const std::string kNorm = "model.layers.4.input_layernorm.weight";
const std::string kExpert = "model.layers.4.mlp.experts.17.up_proj.weight";
const std::string kHead = "lm_head.weight";

}  // namespace

TEST_CASE("selection: numbers in any order have one shortest text") {
  CHECK(numbers("3-5") == "3-5");
  CHECK(numbers("7") == "7");
  CHECK(numbers("5,0-2,3,9") == "0-3,5,9");
  CHECK(numbers("0-65535") == "0-65535");
  CHECK(numbers("4-6,5-5,2-9") == "2-9");
  CHECK(numbers("1,1,1") == "1");
  CHECK(numbers("0,65535") == "0,65535");
  for (const char* text : {"", ",", "1,", ",1", "-", "1-", "-1", "a", "1 ", " 1", "1--2", "1-2-3", "65536", "0-65536",
                           "99999999999999999999", "+1", "0x1"}) {
    CAPTURE(text);
    CHECK(mentions(numbers(text), "is no number from 0 to 65535"));
  }
  CHECK(mentions(numbers("1,5-3"), "\"5-3\" runs downwards"));
}

TEST_CASE("selection: a tensor fits that fits every field; one of no layer or expert fits no number of them") {
  CHECK(takes("layers=3-5", kNorm));
  CHECK(takes("layers=4", kExpert));
  CHECK_FALSE(takes("layers=5", kNorm));
  CHECK_FALSE(takes("layers=0-65535", kHead));
  CHECK(takes("experts=0-31", kExpert));
  CHECK_FALSE(takes("experts=0-16,18", kExpert));
  CHECK_FALSE(takes("experts=0-65535", kNorm));
  CHECK(takes("layers=4 experts=17", kExpert));
  CHECK_FALSE(takes("layers=4 experts=16", kExpert));
  CHECK_FALSE(takes("layers=3 experts=17", kExpert));
  CHECK(takes("role=norm", kNorm));
  CHECK(takes("role=head", kHead));
  CHECK_FALSE(takes("role=norm", kExpert));
  CHECK(takes("role=norm role=head role=embed", kHead));
  CHECK(takes("layers=4 role=routed_expert name=*.weight", kExpert));
  CHECK_FALSE(takes("layers=4 role=routed_expert name=*.weight_scale_inv", kExpert));
  CHECK(takes("name=lm_head.weight", kHead));
  CHECK_FALSE(takes("name=lm_head", kHead));  // the whole name
  CHECK(takes("name=model.*", kExpert));      // a star passes over dots
  CHECK(takes("name=*.experts.1?.*", kExpert));
  CHECK(takes("name=*.experts.[0-9]7.*", kExpert));
  CHECK(takes("name=lm_head.weight name=model.norm.weight", kHead));
  CHECK(takes("layers=4", "language_model." + kNorm));
  // Unknown siblings of an expert are of it; unknown names are of no layer and have the role other.
  CHECK(takes("experts=17 role=routed_expert", "model.layers.4.mlp.experts.17.whatever"));
  CHECK(takes("role=other", "something.else"));
}

TEST_CASE("selection: include takes what fits any, exclude then leaves out what fits any") {
  const auto selection = [](const char* include, const char* exclude) {
    reshard::Selection made;
    if (*include != '\0')
      made.include = reshard::selectors_of(format::parse_json(include, format::kManifestDocument).value()).value();
    if (*exclude != '\0')
      made.exclude = reshard::selectors_of(format::parse_json(exclude, format::kManifestDocument).value()).value();
    return made;
  };
  const auto all = selection("", "");
  CHECK(reshard::takes(all, tensor(kHead)));
  const auto layers = selection(R"([{"layers":"3"},{"layers":4}])", "");
  CHECK(reshard::takes(layers, tensor(kExpert)));
  CHECK_FALSE(reshard::takes(layers, tensor(kHead)));
  const auto without = selection("", R"({"role":["routed_expert","head"]})");
  CHECK(reshard::takes(without, tensor(kNorm)));
  CHECK_FALSE(reshard::takes(without, tensor(kHead)));
  const auto both = selection(R"({"layers":"4"})", R"({"experts":"17"})");
  CHECK(reshard::takes(both, tensor(kNorm)));
  CHECK_FALSE(reshard::takes(both, tensor(kExpert)));
}

TEST_CASE("selection: a JSON selector reads back as it was written, and says the same as a command line") {
  const std::string json =
      R"({"experts":"0-7,9","layers":"3-5","name":["*.weight","x"],"role":["routed_expert","norm"]})";
  const Selector selector = selector_of(format::parse_json(json, format::kManifestDocument).value()).value();
  CHECK(format::canonical_json(reshard::selector_json(selector)) == json);
  const Selector same =
      parse_selector(" layers=3,4-5  role=routed_expert experts=9,0-7 role=norm name=*.weight name=x ").value();
  CHECK(format::canonical_json(reshard::selector_json(same)) == json);
  CHECK(format::canonical_json(reshard::selector_json(
            selector_of(format::parse_json(R"({"layers":3})", format::kManifestDocument).value()).value())) ==
        R"({"layers":"3"})");
}

TEST_CASE("selection: what is wrong with a selector is said") {
  for (const char* json : {"3", "\"layers=3\"", "{}", "[3]", "[{}]", "null", "[[]]"}) {
    CAPTURE(json);
    CHECK(mentions(problem(json), "a selector is an object such as"));
  }
  CHECK(mentions(problem("[]"), "an empty list says nothing"));
  CHECK(mentions(problem(R"({"layer":"3"})"), "unknown key \"layer\"; there are layers, experts, role and name"));
  CHECK(mentions(problem(R"({"layers":"x"})"), "\"layers\": \"x\" is no number"));
  CHECK(mentions(problem(R"({"layers":[3]})"), "\"layers\": is neither a text nor a number"));
  CHECK(mentions(problem(R"({"layers":-1})"), "\"layers\": is neither a text nor a number"));
  CHECK(mentions(problem(R"({"layers":3.5})"), "\"layers\": is neither a text nor a number"));
  CHECK(mentions(problem(R"({"layers":70000})"), "\"70000\" is no number from 0"));
  CHECK(mentions(problem(R"({"role":"experts"})"), "\"experts\" is no role; there are embed, head"));
  CHECK(mentions(problem(R"({"role":[]})"), "\"role\": an empty list matches nothing"));
  CHECK(mentions(problem(R"({"role":[["norm"]]})"), "\"role\": is neither"));
  CHECK(mentions(problem(R"({"name":""})"), "an empty name matches nothing"));
  for (const char* text :
       {"", "  ", "layers", "layers=", "=3", "layers=3 layers=4", "layers:3", "layers=3,role=norm"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_selector(text).has_value());
  }
  CHECK(mentions(parse_selector("layers=3 layers=4").error().message, "comes twice"));
  CHECK(mentions(parse_selector("layers").error().message, "is not of the form key=value"));
  CHECK(mentions(parse_selector(" ").error().message, "is empty"));
}

TEST_CASE("selection: every role of a checkpoint can be named, and the message lists them all") {
  const std::string message = parse_selector("role=none").error().message;
  for (int i = 0; i <= static_cast<int>(format::Role::other); ++i) {
    const std::string name(to_string(static_cast<format::Role>(i)));
    CHECK(parse_selector("role=" + name).value().roles.at(0) == static_cast<format::Role>(i));
    CHECK(mentions(message, name));
  }
}

TEST_CASE("selection: thousands of selectors and of ranges are read and written back") {
  format::Json list = format::Json::array();
  for (int i = 0; i < 10'000; ++i)
    list.push_back({{"layers", std::to_string(i % 61)}, {"name", fmt::format("model.*.w{}", i)}});
  const auto selectors = reshard::selectors_of(list).value();
  CHECK(selectors.size() == 10'000);
  const reshard::Selection selection{.include = selectors, .exclude = {}};
  CHECK(reshard::takes(selection, tensor("model.layers.9.w9")));
  CHECK_FALSE(reshard::takes(selection, tensor("model.layers.9.w10000")));
  std::string text;
  for (int i = 0; i < 60'000; i += 2)
    text += fmt::format("{}{}", i == 0 ? "" : ",", 59'998 - i);
  CHECK(parse_numbers(text).value().size() == 30'000);
}

}  // namespace dspack::selection_test
