#include "runtime/experts/expert_map.h"

#include <doctest/doctest.h>

namespace dspack::runtime::expert_map_test {
namespace {

ExpertKey key(uint32_t layer, uint32_t expert) {
  return {.layer = LayerId(layer), .expert = ExpertId(expert)};
}

ExpertMap small_map() {
  return ExpertMap({{.layer = LayerId(3), .experts = 4}, {.layer = LayerId(7), .experts = 2}});
}

TEST_CASE("expert map: picks are told once, added up, and those of unknown experts are nobody's") {
  ExpertMap map = small_map();
  CHECK(map.take_picked() == format::Json::array());
  map.pick(key(7, 1), 2);
  map.pick(key(7, 1), 1);
  map.pick(key(3, 0), 5);
  map.pick(key(5, 0), 1);
  map.pick(key(7, 2), 1);
  CHECK(map.take_picked() == format::Json::parse("[[0,[0,5]],[1,[1,3]]]"));
  CHECK(map.take_picked() == format::Json::array());
}

TEST_CASE("expert map: moves are what has changed since they were last told; rows are what was told") {
  ExpertMap map = small_map();
  map.place({.device = {key(3, 1)}, .host = {key(3, 1), key(7, 0), key(9, 0)}});
  CHECK(map.in_host() == 2);
  CHECK(map.in_device() == 1);
  CHECK(map.rows()[0]["places"] == "0000");
  CHECK(map.take_moved() == format::Json::parse("[[0,[1,2]],[1,[0,1]]]"));
  CHECK(map.rows() == format::Json::parse(R"([{"layer":3,"places":"0200"},{"layer":7,"places":"10"}])"));
  map.place({.device = {}, .host = {key(3, 1), key(7, 0)}});
  CHECK(map.take_moved() == format::Json::parse("[[0,[1,1]]]"));
  CHECK(map.take_moved() == format::Json::array());
}

TEST_CASE("expert map: where the device has all experts, each one is there") {
  ExpertMap map = small_map();
  map.place({.device = {}, .host = {}, .is_resident = true});
  CHECK(map.in_device() == 6);
  CHECK(map.take_moved() == format::Json::parse("[[0,[0,2,1,2,2,2,3,2]],[1,[0,2,1,2]]]"));
}

}  // namespace
}  // namespace dspack::runtime::expert_map_test
