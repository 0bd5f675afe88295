#include "format/layer_map.h"
#include "format/json.h"

#include <doctest/doctest.h>

#include <fstream>
#include <map>

namespace dspack::layer_map_test {

using namespace dspack;
using namespace dspack::format;

namespace {

LayerMap map_of(std::initializer_list<uint32_t> layers) {
  LayerMap map;
  for (const uint32_t layer : layers)
    map.emplace_back(layer);
  return map;
}

template <class T>
std::string problem(const Result<T>& parsed) {
  return parsed ? "none" : parsed.error().message;
}

Result<LayerMap> by_ratio(std::string_view text, uint32_t layers) {
  TRY_ASSIGN(const RatioRepeat ratio, parse_ratio_repeat(text));
  return select_layers(ratio, layers);
}

}  // namespace

TEST_CASE("layer map: numbers and ranges, in any order, with spaces") {
  CHECK(parse_layers("4").value() == map_of({4}));
  CHECK(parse_layers("0-3,2-5").value() == map_of({0, 1, 2, 3, 2, 3, 4, 5}));
  CHECK(parse_layers(" 3 , 1 - 2 ,\t0,007").value() == map_of({3, 1, 2, 0, 7}));
  CHECK(parse_layers("5-5,65535").value() == map_of({5, 65535}));
  CHECK(parse_layers("0-4095").value().size() == kMaxPassLayers);
}

TEST_CASE("layer map: the text in the fewest ranges reads back") {
  const std::map<std::string, std::string> canonical = {
      {"0,1,2,3", "0-3"}, {"0-3,4-10", "0-10"}, {"3,2,1", "3,2,1"},         {"0,0", "0,0"},
      {"1,2", "1-2"},     {"7", "7"},           {"0-3,2-5,3", "0-3,2-5,3"}, {"0-2,2-4", "0-2,2-4"}};
  for (const auto& [text, wanted] : canonical) {
    const LayerMap map = parse_layers(text).value();
    CHECK(format::to_string(map) == wanted);
    CHECK(parse_layers(wanted).value() == map);
    CHECK(layer_map_of(layer_map_json(map)).value() == map);
  }
}

TEST_CASE("layer map: texts that are none are refused with the place") {
  const std::map<std::string, std::string> cases = {{"", "the number of a layer is missing at the end"},
                                                    {" ", "the number of a layer is missing at the end"},
                                                    {"0-3,", "the number of a layer is missing at the end"},
                                                    {"0,,1", "the number of a layer is missing at character 3"},
                                                    {"-1", "the number of a layer is missing at character 1"},
                                                    {"0-", "the number of a layer is missing at the end"},
                                                    {"all", "the number of a layer is missing at character 1"},
                                                    {"1 2", "a comma or hyphen is missing at character 3"},
                                                    {"0-3;5", "a comma or hyphen is missing at character 4"},
                                                    {"0-1-2", "a comma or hyphen is missing at character 4"},
                                                    {"1.5", "a comma or hyphen is missing at character 2"},
                                                    {"5-3", "5-3 descends; write the layers one by one: 5,...,3"},
                                                    {"65536", "there is no layer above 65535"},
                                                    {"0-99999999999999999999999", "there is no layer above 65535"},
                                                    {"0-4096", "the layers would be passed in more than 4096 steps"},
                                                    {"0-4095,0", "the layers would be passed in more than 4096 steps"}};
  for (const auto& [text, wanted] : cases) {
    CAPTURE(text);
    CHECK(problem(parse_layers(text)) == wanted);
  }
}

TEST_CASE("layer map: shares of the depth are exact decimals, and their text reads back") {
  const std::map<std::string, std::string> canonical = {
      {"(0,.5),(.3,.8),(.5,1)", "(0,0.5),(0.3,0.8),(0.5,1)"},
      {" ( 1. , 00.070 ) ", "(0.07,1)"},
      {"(0.000000000001,.999999999999)", "(0.000000000001,0.999999999999)"},
      {"(1.000000000000,0.)", "(0,1)"}};
  for (const auto& [text, wanted] : canonical) {
    CAPTURE(text);
    const auto ratio = parse_ratio_repeat(text);
    REQUIRE_MESSAGE(ratio, problem(ratio));
    CHECK(format::to_string(*ratio) == wanted);
    CHECK(parse_ratio_repeat(wanted).value() == *ratio);
  }
}

TEST_CASE("layer map: shares that are none are refused with the place") {
  const std::map<std::string, std::string> cases = {
      {"", "an opening parenthesis is missing at the end"},
      {"0,.5", "an opening parenthesis is missing at character 1"},
      {"()", "a decimal from 0 to 1 is missing at character 2"},
      {"(.,1)", "a decimal from 0 to 1 is missing at character 3"},
      {"(0)", "a comma is missing at character 3"},
      {"(0,1", "a closing parenthesis is missing at the end"},
      {"(0,1,1)", "a closing parenthesis is missing at character 5"},
      {"(0,1),", "an opening parenthesis is missing at the end"},
      {"(0,1)(0,1)", "a comma is missing at character 6"},
      {"(0,1.5)", "a share of the depth lies outside 0 to 1"},
      {"(0,1.000000000001)", "a share of the depth lies outside 0 to 1"},
      {"(0,99999999999999999999999999)", "a share of the depth lies outside 0 to 1"},
      {"(-.1,1)", "a decimal from 0 to 1 is missing at character 2"},
      {"(0,0e-1)", "a closing parenthesis is missing at character 5"},
      {"(0,nan)", "a decimal from 0 to 1 is missing at character 4"},
      {"(0,.1234567890123)", "a decimal has more than 12 places"}};
  for (const auto& [text, wanted] : cases) {
    CAPTURE(text);
    CHECK(problem(parse_ratio_repeat(text)) == wanted);
  }
}

TEST_CASE("layer map: shares of the depth become the layers that exact fractions give") {
  std::ifstream file(DSPACK_ROOT "/tests/data/layer_map_cases.json");
  const auto cases = parse_json(std::string{std::istreambuf_iterator<char>(file), {}}, kManifestDocument);
  REQUIRE_MESSAGE(cases, problem(cases));
  REQUIRE(cases->size() == 76);
  for (const Json& entry : *cases) {
    const std::string text = entry["ratio_repeat"];
    const uint32_t layers = entry["layers"];
    CAPTURE(text);
    CAPTURE(layers);
    const auto map = by_ratio(text, layers);
    REQUIRE_MESSAGE(map, problem(map));
    CHECK(*map == layer_map_of(entry["map"]).value());
    // What filling promises.
    CHECK(map->front() == LayerId(0));
    CHECK(map->back() == LayerId(layers - 1));
    for (size_t i = 1; i < map->size(); ++i)
      CHECK((*map)[i].value <= (*map)[i - 1].value + 1);
  }
}

TEST_CASE("layer map: what does not fit the model is refused") {
  CHECK(select_layers(parse_layers("0-4,4").value(), 5).value() == map_of({0, 1, 2, 3, 4, 4}));
  const auto beyond = select_layers(parse_layers("0-4,9,5").value(), 5);
  CHECK(problem(beyond) == "layer 9 is none of this model's; they are 0 to 4");
  CHECK(beyond.error().kind == ErrorKind::invalid);
  CHECK(problem(by_ratio("(0,1),(0,1)", 4000)) == "the layers would be passed in more than 4096 steps");
}

TEST_CASE("layer map: lists are checked entry by entry") {
  for (const char* text : {"[]", "{}", "null", "\"0-3\"", "3"})
    CHECK(problem(layer_map_of(parse_json(text, kManifestDocument).value())) ==
          "a layer map is a list of at least one layer number");
  for (const char* text : {"[-1]", "[1.5]", "[\"1\"]", "[65536]", "[18446744073709551616]", "[[0]]", "[null]"}) {
    CHECK(problem(layer_map_of(parse_json(text, kManifestDocument).value())) ==
          "a layer map has an entry that is no layer number from 0 to 65535");
  }
  CHECK(problem(layer_map_of(Json(std::vector<uint32_t>(4097, 0)))) ==
        "the layers would be passed in more than 4096 steps");
}

}  // namespace dspack::layer_map_test
