// model.safetensors.index.json. Input: its text.
#include <algorithm>
#include <set>

#include "format/file_system.h"
#include "format/index.h"
#include "format/json.h"
#include "tests/fuzz/target.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = format::parse_index(fuzz::as_text(data, size));
  if (!index) {
    fuzz::check_refusal(index.error());
    return 0;
  }
  std::set<std::string> files;
  format::Json map;
  for (const auto& [tensor, number] : index->weight_map) {
    DSPACK_CHECK(number < index->files.size(), "a tensor in no file");
    files.insert(index->files[number]);
    map[tensor] = index->files[number];
  }
  DSPACK_CHECK(std::equal(files.begin(), files.end(), index->files.begin(), index->files.end()),
               "the files are not those of the map, sorted");
  DSPACK_CHECK(!files.empty(), "an index without tensors");
  for (const std::string& file : files)
    DSPACK_CHECK(!format::unsafe_path_reason(file), file);
  const auto again = format::parse_index(format::canonical_json(format::Json{{"weight_map", map}}));
  DSPACK_CHECK(again.has_value() && again->files == index->files && again->weight_map == index->weight_map,
               "written again it reads differently");
  return 0;
}
