#include <doctest/doctest.h>

#include "format/json.h"
#include "reshard/verbs/inspect.h"
#include "reshard/verbs/inspect_data.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::inspect_html_test {

using namespace dspack;
using format::Json;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

format::Checkpoint opened(const TempFolder& folder) {
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  return format::Checkpoint::open(*repository, 1, {}).value();
}

Json data_of(const format::Checkpoint& checkpoint) {
  const reshard::Arrangement after = reshard::planned_arrangement({}, checkpoint);
  return reshard::page_data(checkpoint, {}, reshard::present_arrangement(checkpoint), after).value();
}

size_t count(const std::string& text, std::string_view part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at)
    ++found;
  return found;
}

}  // namespace

TEST_CASE("inspect page: text from outside can neither end its element nor be taken for a part of the frame") {
  const std::string plain = reshard::page_around({{"name", "harmless"}});
  const std::string hostile = reshard::page_around({{"name", "</script><!--{{style}}{{script}}\xff"}});
  for (const char* part : {"<script", "</script", "<!--", "<style"})
    CHECK(count(plain, part) == count(hostile, part));
  CHECK(count(plain, "{{") == 0);
  CHECK(count(hostile, "{{style}}{{script}}") == 1);
}

TEST_CASE("inspect page: experts that are alike are one entry, and their tensors one set") {
  TempFolder folder;
  SmallCheckpoint original;
  for (unsigned expert = 3; expert < 40; ++expert) {
    const std::string prefix = "model.layers.1.mlp.experts." + std::to_string(expert) + ".";
    original.add(0, prefix + "up_proj.weight", "F8_E4M3", {64, 64}, 1);
    original.add(0, prefix + "up_proj.weight_scale_inv", "F32", {1, 1}, 4);
  }
  original.write(folder);
  const Json page = data_of(opened(folder));
  bool found = false;
  for (const Json& unit : page["units"])
    found = found || (unit[0] == 1 && unit[1] == 3 && unit[2] == 37);
  CHECK(found);
  CHECK(page["sets"].size() < 10);
}

TEST_CASE("inspect page: an arrangement is the files' own, tensors by offset, holes included") {
  TempFolder folder;
  SmallCheckpoint().write(folder);
  const format::Checkpoint checkpoint = opened(folder);
  reshard::Arrangement present = reshard::present_arrangement(checkpoint);
  REQUIRE(present.size() == checkpoint.files().size());
  for (const reshard::ArrangedFile& file : present) {
    uint64_t end = file.data_start;
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      CHECK(file.offsets[i] == end);
      end += checkpoint.tensors()[file.tensors[i]].range.size();
    }
    CHECK(end == file.size_bytes);
  }
  present[0].offsets.back() += 4096;
  present[0].size_bytes += 4096;
  const Json page = reshard::page_data(checkpoint, {}, present, present).value();
  const Json& runs = page["after"]["files"][0][3];
  bool hole = false;
  for (size_t i = 0; i + 1 < runs.size(); i += 2)
    hole = hole || (runs[i] == 4096 && runs[i + 1] == 0);
  CHECK(hole);
}

}  // namespace dspack::inspect_html_test
