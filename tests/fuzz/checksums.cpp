// A list of checksums in the form of sha256sum. Input: its text.
#include <algorithm>

#include "reshard/verbs/verify_source.h"
#include "tests/fuzz/target.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto list = reshard::parse_checksum_list(fuzz::as_text(data, size), "SUMS");
  if (!list) {
    fuzz::check_refusal(list.error());
    DSPACK_CHECK(list.error().message.starts_with("SUMS: line "), list.error().message);
    return 0;
  }
  std::string text;
  for (const auto& [path, file] : list->files) {
    if (path.ends_with('\r')) return 0;  // written at the end of a line, it would be taken for part of that
    text.append(to_hex(file.sha256)).append("  ").append(path).append("\n");
  }
  const auto again = reshard::parse_checksum_list(text, "SUMS");
  DSPACK_CHECK(again.has_value() && again->weights == list->weights, text);
  DSPACK_CHECK(again->files.size() == list->files.size(), text);
  for (const auto& [path, file] : list->files)
    DSPACK_CHECK(again->files.at(path).sha256 == file.sha256, path);
  DSPACK_CHECK(std::is_sorted(list->weights.begin(), list->weights.end()), "weights out of order");
  for (const std::string& path : list->weights)
    DSPACK_CHECK(list->files.contains(path), path);
  return 0;
}
