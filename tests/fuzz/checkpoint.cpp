// An ordinary checkpoint as a whole. Input: as checkpoint_input.h says.
#include "format/index.h"
#include "tests/fuzz/catalogue.h"
#include "tests/fuzz/checkpoint_input.h"

using namespace dspack;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  fuzz::MemoryRepository repository = fuzz::repository_of(text);
  const auto checkpoint = format::Checkpoint::open(repository, 1, {});
  if (!checkpoint) {
    fuzz::check_refusal(checkpoint.error());
    return 0;
  }
  fuzz::check_catalogue(*checkpoint);
  const std::string_view index = fuzz::take(text, '\n');
  if (index.empty() || checkpoint->manifest()) return 0;
  const auto parsed = format::parse_index(index);
  DSPACK_CHECK(parsed.has_value(), "a checkpoint with an index that is none");
  for (const auto& [name, number] : parsed->weight_map) {
    const format::TensorEntry* tensor = checkpoint->find(name);
    DSPACK_CHECK(tensor != nullptr && checkpoint->files()[tensor->file].path == parsed->files[number], name);
  }
  return 0;
}
