// The tiny model's own text files, and what the reference programs made of them.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace dspack::runtime::testing {

inline std::string test_file(const std::string& path) {
  std::ifstream file(std::string(DSPACK_TEST_DATA "/") + path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json test_json(const std::string& path) {
  return nlohmann::json::parse(test_file(path));
}

}  // namespace dspack::runtime::testing
