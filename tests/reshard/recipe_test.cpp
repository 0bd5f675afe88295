#include <doctest/doctest.h>

#include "reshard/recipe.h"

using namespace dspack;
using reshard::parse_recipe;

TEST_CASE("recipe: reads back as it is written") {
  const auto recipe = parse_recipe(R"({ "by": "expert" })");
  REQUIRE(recipe.has_value());
  CHECK(recipe->by == reshard::Grouping::expert);
  const std::string text = format::canonical_json(recipe_json(*recipe));
  CHECK(recipe_json(parse_recipe(text).value()) == recipe_json(*recipe));
}

TEST_CASE("recipe: an unknown key or value is named, not passed over") {
  CHECK(parse_recipe(R"({"by":"expert","cores":2})").error().message.find("\"cores\"") != std::string::npos);
  CHECK(parse_recipe(R"({"by":"colour"})").error().message.find("\"colour\"") != std::string::npos);
  for (const char* text : {"", "[]", "{}", R"({"by":1})", R"({"by":"expert"}x)"}) {
    CAPTURE(text);
    CHECK(parse_recipe(text).error().kind == ErrorKind::invalid);
  }
}
