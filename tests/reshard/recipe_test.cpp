#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "reshard/plan/recipe.h"

namespace dspack::recipe_test {

using namespace dspack;
using reshard::parse_grouping;
using reshard::parse_recipe;

namespace {

std::string problem(std::string_view grouping) {
  const auto parsed = parse_grouping(grouping);
  return parsed ? "none" : parsed.error().message;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("recipe: equal groupings have one canonical text, which reads back") {
  const std::map<std::string, std::string> canonical = {{"expert", "expert"},
                                                        {"expert:1", "expert"},
                                                        {"expert:8", "expert:8"},
                                                        {"expert:65535", "expert:65535"},
                                                        {"layer", "layer"},
                                                        {"shard:5GB", "shard:5000000000"},
                                                        {"shard:4GiB", "shard:4294967296"},
                                                        {"shard:4097", "shard:4097"}};
  for (const auto& [text, wanted] : canonical) {
    CAPTURE(text);
    const auto grouping = parse_grouping(text);
    REQUIRE_MESSAGE(grouping.has_value(), problem(text));
    CHECK(to_string(*grouping) == wanted);
    CHECK(to_string(parse_grouping(wanted).value()) == wanted);
    CHECK(reshard::recipe_json({.by = *grouping}) == format::Json{{"by", wanted}});
  }
}

TEST_CASE("recipe: groupings that are none are refused with what is wrong") {
  for (const char* text : {"", "experts", "Layer", "layer:2", "shard", "layers"}) {
    CAPTURE(text);
    CHECK(mentions(problem(text), "is no grouping"));
    CHECK(mentions(problem(text), "\"" + std::string(text) + "\""));
    CHECK(mentions(problem(text), "\"expert:N\", \"layer\" or \"shard:SIZE\""));
  }
  for (const char* text :
       {"expert:", "expert:0", "expert:x", "expert:8x", "expert:-1", "expert:65536", "expert:99999999999999999999"}) {
    CAPTURE(text);
    CHECK(mentions(problem(text), "from 1 to 65535"));
  }
  CHECK(mentions(problem("shard:1"), "too small"));
  CHECK(mentions(problem("shard:4096"), "too small"));
  CHECK(mentions(problem("shard:5xb"), "is no size"));
  CHECK(mentions(problem("shard:"), "is no size"));
}

TEST_CASE("recipe: a file says what the flag says, and unknown keys are named") {
  CHECK(to_string(parse_recipe(R"( {"by": "expert:8"} )").value().by) == "expert:8");
  CHECK(mentions(parse_recipe(R"({"by":"layer","grouping":true})").error().message, "unknown key \"grouping\""));
  const auto asks = [](const char* recipe, const char* word) {
    return mentions(parse_recipe(recipe).error().message, "; did you mean " + std::string(word) + "?");
  };
  CHECK(asks(R"({"by":"layer","exlude":"layers=3"})", "exclude"));
  CHECK(asks(R"({"by":"exprt"})", "expert"));
  CHECK(asks(R"({"by":"layer","include":{"layer":"3"}})", "layers"));
  CHECK(asks(R"({"by":"layer","include":{"role":"routed_experts"}})", "routed_expert"));
  CHECK(asks(R"({"by":"layer","transform":"fp8-to-bf61"})", "fp8-to-bf16"));
  CHECK(mentions(parse_recipe("{}").error().message, "\"by\""));
  CHECK(mentions(parse_recipe(R"({"by":8})").error().message, "\"by\""));
  CHECK(mentions(parse_recipe(R"({"by":"expert:0"})").error().message, "expert:0"));
  CHECK_FALSE(parse_recipe(R"({"by":"layer","by":"expert"})").has_value());
  for (const char* text : {"", "[]", "\"layer\"", "{", "null"})
    CHECK_FALSE(parse_recipe(text).has_value());
}

TEST_CASE("recipe: layers as a text, as a list or by shares of the depth") {
  const auto canonical = [](const std::string& rest) {
    const auto recipe = parse_recipe(R"({"by":"layer")" + rest + "}");
    if (!recipe) return recipe.error().message;
    format::Json json = reshard::recipe_json(*recipe);
    CHECK(json["by"] == "layer");
    json.erase("by");
    return format::canonical_json(json);
  };
  CHECK(canonical("") == "{}");
  CHECK(canonical(R"(,"layer_map":"0, 1-3,2-5")") == R"({"layer_map":"0-3,2-5"})");
  CHECK(canonical(R"(,"layer_map":[0,1,2,2])") == R"({"layer_map":"0-2,2"})");
  CHECK(canonical(R"x(,"ratio_repeat":"(.5,0), (.3,1.0)" )x") == R"x({"ratio_repeat":"(0,0.5),(0.3,1)"})x");
  CHECK(mentions(canonical(R"x(,"layer_map":"0","ratio_repeat":"(0,1)")x"), "exclude each other"));
  for (const char* value : {R"("")", "[]", "[-1]", "3", "null", R"("3-1")", R"(["0-3"])"})
    CHECK(mentions(canonical(fmt::format(R"(,"layer_map":{})", value)), "\"layer_map\": "));
  for (const char* value : {R"("")", "[]", "0.5", R"x("(0,2)")x", "null"})
    CHECK(mentions(canonical(fmt::format(R"(,"ratio_repeat":{})", value)), "\"ratio_repeat\": "));
}

TEST_CASE("recipe: selections, transforms and dropping read back as they were written") {
  const auto canonical = [](const std::string& rest) {
    const auto recipe = parse_recipe(R"({"by":"layer",)" + rest + "}");
    if (!recipe) return recipe.error().message;
    format::Json json = reshard::recipe_json(*recipe);
    const auto again = parse_recipe(json.dump());
    REQUIRE_MESSAGE(again.has_value(), again.error().message);
    CHECK(reshard::recipe_json(*again) == json);
    json.erase("by");
    return format::canonical_json(json);
  };
  CHECK(canonical(R"("include":{"layers":3})") == R"({"include":[{"layers":"3"}]})");
  CHECK(canonical(R"("include":[{"layers":"5,3-4"},{"role":"head"}],"exclude":{"name":"*x"})") ==
        R"({"exclude":[{"name":["*x"]}],"include":[{"layers":"3-5"},{"role":["head"]}]})");
  CHECK(canonical(R"("transform":"fp8-to-bf16")") == R"({"transform":[{"kind":"fp8-to-bf16"}]})");
  CHECK(canonical(R"("transform":"fp8-to-bf16 role=attention layers=1")") ==
        R"({"transform":[{"kind":"fp8-to-bf16","layers":"1","role":["attention"]}]})");
  CHECK(canonical(R"("transform":{"kind":"scales-to-e8m0"})") == R"({"transform":[{"kind":"scales-to-e8m0"}]})");
  CHECK(canonical(R"("transform":["bf16-to-fp8",{"kind":"fp8-to-f32","experts":0}])") ==
        R"({"transform":[{"kind":"bf16-to-fp8"},{"experts":"0","kind":"fp8-to-f32"}]})");
  CHECK(canonical(R"("drop_mtp":true)") == R"({"drop_mtp":true})");
  CHECK(canonical(R"("drop_mtp":false)") == "{}");
  CHECK(canonical(R"("transform":[])") == "{}");

  CHECK(mentions(canonical(R"("include":[])"), "\"include\": an empty list says nothing"));
  CHECK(mentions(canonical(R"("exclude":{"layer":1})"), "\"exclude\": unknown key \"layer\""));
  CHECK(mentions(canonical(R"("drop_mtp":1)"), "\"drop_mtp\" is neither true nor false"));
  CHECK(
      mentions(canonical(R"("transform":"fp8")"), "\"transform\": \"fp8\" is no transform; there are \"fp8-to-bf16\""));
  CHECK(mentions(canonical(R"("transform":"fp8-to-bf16 x")"), "\"transform\": \"x\" is not of the form key=value"));
  CHECK(mentions(canonical(R"("transform":3)"), "\"transform\": a transform is an object"));
  CHECK(mentions(canonical(R"("transform":[["fp8-to-bf16"]])"), "\"transform\": a transform is an object"));
  CHECK(mentions(canonical(R"("transform":{"role":"norm"})"), "\"transform\": \"kind\""));
  CHECK(mentions(canonical(R"("transform":{"kind":"fp8-to-f32","roles":"norm"})"), "unknown key \"roles\""));
}

namespace {

/// The recipe that flags of a command line say; as in "--by layer --include \"layers=3-5\" --drop-mtp".
reshard::Recipe recipe_of_flags(const std::string& text) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  reshard::Recipe recipe;
  for (size_t i = 0; i < words.size(); ++i) {
    CAPTURE(words[i]);
    if (words[i] == "--drop-mtp") {
      recipe.drop_mtp = true;
      continue;
    }
    REQUIRE(i + 1 < words.size());
    const std::string& value = words[i + 1];
    if (words[i] == "--by")
      recipe.by = parse_grouping(value).value();
    else if (words[i] == "--include")
      recipe.selection.include.push_back(reshard::parse_selector(value).value());
    else if (words[i] == "--exclude")
      recipe.selection.exclude.push_back(reshard::parse_selector(value).value());
    else if (words[i] == "--transform")
      recipe.transforms.push_back(reshard::parse_transform(value).value());
    else
      FAIL("a flag that this test does not know");
    ++i;
  }
  return recipe;
}

}  // namespace

TEST_CASE("recipe: every file of the folder is a recipe, and stands in its table with the flags that mean the same") {
  const std::filesystem::path folder = DSPACK_ROOT "/recipes";
  std::ifstream table_file(folder / "README.md");
  const std::string table{std::istreambuf_iterator<char>(table_file), {}};
  size_t recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto recipe = parse_recipe(text);
    REQUIRE_MESSAGE(recipe.has_value(), recipe.error().message);
    const std::string row = fmt::format("| [{0}]({0}) | `", name);
    const size_t at = table.find(row);
    REQUIRE_MESSAGE(at != std::string::npos, "no row begins with " << row);
    const size_t begin = at + row.size();
    const std::string flags = table.substr(begin, table.find('`', begin) - begin);
    CHECK(format::canonical_json(reshard::recipe_json(recipe_of_flags(flags))) ==
          format::canonical_json(reshard::recipe_json(*recipe)));
    ++recipes;
  }
  size_t rows = 0;
  for (size_t at = table.find("\n| ["); at != std::string::npos; at = table.find("\n| [", at + 1))
    ++rows;
  CHECK(recipes == rows);
  CHECK(recipes >= 10);
}

}  // namespace dspack::recipe_test
