#include <doctest/doctest.h>

#include "format/index.h"

namespace dspack::index_test {

using namespace dspack;
using format::parse_index;

TEST_CASE("index: files are distinct and sorted, each tensor has one") {
  const auto index = parse_index(R"({"metadata":{"total_size":3},"weight_map":{"c":"a","b":"s/z","a":"a"}})");
  REQUIRE(index.has_value());
  CHECK(index->files == std::vector<std::string>{"a", "s/z"});
  CHECK(index->weight_map == std::map<std::string, uint32_t>{{"a", 0}, {"b", 1}, {"c", 0}});
}

TEST_CASE("index: what is no index, or points out of the repository, is invalid") {
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"../x"}})", R"({"weight_map":{"a":"/x"}})",
                           R"({"weight_map":{"a":""}})", R"({"weight_map":{"a":"x","a":"y"}})"}) {
    CAPTURE(text);
    const auto index = parse_index(text);
    REQUIRE_FALSE(index.has_value());
    CHECK(index.error().kind == ErrorKind::invalid);
  }
}

}  // namespace dspack::index_test
