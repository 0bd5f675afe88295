// An ordinary checkpoint as a whole. Input: the index on the first line (empty: none), then one shard a line: its path,
// a space, the JSON of its header. Each shard's length is made to fit.
#include <string>

#include "format/index.h"
#include "tests/fuzz/catalogue.h"
#include "tests/fuzz/memory_repository.h"
#include "tests/fuzz/shard.h"

using namespace dspack;

namespace {

fuzz::MemoryFile shard_file(std::string_view json) {
  std::string text;
  for (size_t i = 0; i < 8; ++i)
    text += static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return {text.append(json), fuzz::claimed_file_bytes(json)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const std::string_view index = fuzz::take(text, '\n');
  std::map<std::string, fuzz::MemoryFile> files;
  for (std::string_view line : fuzz::split(text, '\n')) {
    const std::string path(fuzz::take(line, ' '));
    files[path] = shard_file(line);
  }
  if (!index.empty()) files[format::kIndexPath] = {std::string(index), index.size()};
  fuzz::MemoryRepository repository(std::move(files));
  const auto checkpoint = format::Checkpoint::open(repository, 1, {});
  if (!checkpoint) {
    fuzz::check_refusal(checkpoint.error());
    return 0;
  }
  fuzz::check_catalogue(*checkpoint);
  if (index.empty()) return 0;
  const auto parsed = format::parse_index(index);
  DSPACK_CHECK(parsed.has_value(), "a checkpoint with an index that is none");
  for (const auto& [name, number] : parsed->weight_map) {
    const format::TensorEntry* tensor = checkpoint->find(name);
    DSPACK_CHECK(tensor != nullptr && checkpoint->files()[tensor->file].path == parsed->files[number], name);
  }
  return 0;
}
