// What holds for every checkpoint that opens, packed or ordinary.
// Threads: thread-safe (pure functions).
#pragma once

#include "format/base/size.h"
#include "format/checkpoint.h"
#include "tests/fuzz/target.h"

namespace dspack::fuzz {

/// The bytes of a routed expert: its tensors by name, its extents ascending, apart, and as large as the tensors.
inline void check_expert(const format::Checkpoint& checkpoint, ExpertKey key) {
  uint64_t tensor_bytes = 0;
  const std::string* last = nullptr;
  for (const uint32_t number : checkpoint.expert(key)) {
    const format::TensorEntry& tensor = checkpoint.tensors()[number];
    DSPACK_CHECK(tensor.place.layer == key.layer && tensor.place.expert == key.expert, tensor.name);
    DSPACK_CHECK(last == nullptr || *last < tensor.name, tensor.name);
    last = &tensor.name;
    tensor_bytes += tensor.range.size();
  }
  uint64_t extent_bytes = 0;
  const format::Extent* before = nullptr;
  const std::vector<format::Extent> extents = checkpoint.expert_extents(key);
  for (const format::Extent& extent : extents) {
    const bool apart = before == nullptr || before->file < extent.file ||
                       (before->file == extent.file && before->range.end < extent.range.begin);
    DSPACK_CHECK(apart, "extents that touch, overlap or go back");
    before = &extent;
    extent_bytes += extent.range.size();
  }
  DSPACK_CHECK(extent_bytes == tensor_bytes, "the extents are not the expert's bytes");
}

/// Tensors lie within their files, names lead to their tensors, and no sum overflows.
inline void check_catalogue(const format::Checkpoint& checkpoint) {
  uint64_t payload = 0;
  size_t of_experts = 0;
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    DSPACK_CHECK(tensor.file < checkpoint.files().size(), tensor.name);
    const format::CheckpointFile& file = checkpoint.files()[tensor.file];
    DSPACK_CHECK(tensor.range.begin >= file.data_start && tensor.range.begin <= tensor.range.end, tensor.name);
    DSPACK_CHECK(tensor.range.end <= file.size_bytes, tensor.name);
    DSPACK_CHECK(format::tensor_bytes(tensor.dtype, tensor.shape) == tensor.range.size(), tensor.name);
    DSPACK_CHECK(checkpoint.find(tensor.name) == &tensor, tensor.name);
    payload = checked_add(payload, tensor.range.size()).value();
    of_experts += tensor.place.expert ? 1 : 0;
  }
  DSPACK_CHECK(payload == checkpoint.payload_bytes(), "a wrong sum of bytes");
  for (const auto& [key, tensors] : checkpoint.experts()) {
    check_expert(checkpoint, key);
    of_experts -= tensors.size();
  }
  DSPACK_CHECK(of_experts == 0, "an expert's tensor that no expert has");
}

}  // namespace dspack::fuzz
