// The trained small checkpoint with some of its tensors replaced or left out, in a folder of its own.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "format/json.h"
#include "tests/support/temp_folder.h"

namespace dspack::test {

std::filesystem::path overlay(const std::string& name);

class OverlaidModel {
 public:
  struct Changes {
    std::vector<std::filesystem::path> overlays = {};  // a later one wins
    std::string drop_prefix = {};                      // tensors whose names begin with it are left out; empty: none
    format::Json config = format::Json::object();      // replaces values of config.json
  };

  explicit OverlaidModel(const Changes& changes);

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

}  // namespace dspack::test
