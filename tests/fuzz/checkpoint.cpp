// An ordinary checkpoint as a whole. Input: as checkpoint_input.h says.
#include <algorithm>

#include "format/index.h"
#include "tests/fuzz/catalogue.h"
#include "tests/fuzz/checkpoint_input.h"

using namespace dspack;

namespace {

/// The slices of a tensor follow each other, in the order of their experts, and are all alike.
void check_slices(const format::FusedTensor& fused, const format::Checkpoint& checkpoint) {
  DSPACK_CHECK(fused.slices >= 2 && checkpoint.find(fused.name) == nullptr, fused.name);
  const format::TensorEntry& first = checkpoint.tensors().at(fused.first);
  for (uint32_t i = 0; i < fused.slices; ++i) {
    const format::TensorEntry& slice = checkpoint.tensors().at(fused.first + i);
    DSPACK_CHECK(slice.file == fused.file && slice.place.expert == ExpertId(i), slice.name);
    DSPACK_CHECK(slice.dtype == first.dtype && slice.shape == first.shape, slice.name);
    DSPACK_CHECK(slice.range.begin == first.range.begin + i * first.range.size(), slice.name);
    DSPACK_CHECK(slice.range.size() == first.range.size() && slice.range.size() > 0, slice.name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  fuzz::MemoryRepository repository = fuzz::repository_of(text);
  const auto checkpoint = format::Checkpoint::open(repository, 1, {});
  if (!checkpoint) {
    fuzz::check_refusal(checkpoint.error());
    return 0;
  }
  fuzz::check_catalogue(*checkpoint);
  for (const format::FusedTensor& fused : checkpoint->fused())
    check_slices(fused, *checkpoint);
  const std::string_view index = fuzz::take(text, '\n');
  if (index.empty() || checkpoint->manifest()) return 0;
  const auto parsed = format::parse_index(index);
  DSPACK_CHECK(parsed.has_value(), "a checkpoint with an index that is none");
  for (const auto& [name, number] : parsed->weight_map) {
    const format::TensorEntry* tensor = checkpoint->find(name);
    const auto& fused = checkpoint->fused();
    const auto whole = std::ranges::find(fused, name, &format::FusedTensor::name);
    DSPACK_CHECK(tensor != nullptr || whole != fused.end(), name);
    const uint32_t file = tensor != nullptr ? tensor->file : whole->file;
    DSPACK_CHECK(checkpoint->files()[file].path == parsed->files[number], name);
  }
  return 0;
}
