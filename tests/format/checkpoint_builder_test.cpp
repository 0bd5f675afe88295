// Gate and up within one tensor of an expert, and what has another shape than that.
#include "format/checkpoint_builder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dspack::format::checkpoint_builder_test {
namespace {

constexpr char kExpert[] = "model.layers.1.mlp.experts.5.";

TensorEntry tensor(const std::string& word, Dtype dtype, std::vector<uint64_t> shape, ByteRange range) {
  return {.name = kExpert + word,
          .place = {},
          .dtype = dtype,
          .shape = std::move(shape),
          .file = 3,
          .range = range,
          .digest = {}};
}

std::vector<TensorEntry> within(const std::vector<TensorEntry>& expert) {
  std::vector<const TensorEntry*> all;
  for (const TensorEntry& each : expert)
    all.push_back(&each);
  return projections_within(all);
}

void check_part(const std::vector<TensorEntry>& found, const std::string& word, std::vector<uint64_t> shape,
                ByteRange range) {
  CAPTURE(word);
  const auto part = std::ranges::find(found, kExpert + word, &TensorEntry::name);
  REQUIRE(part != found.end());
  CHECK(part->shape == shape);
  CHECK(part->range.begin == range.begin);
  CHECK(part->range.end == range.end);
  CHECK(part->file == 3);
  CHECK_FALSE(part->digest.has_value());
}

TEST_CASE("fused projections: halves of the bytes, and the scale of both") {
  const auto found = within({tensor("gate_up_proj", Dtype::f8_e4m3, {12, 8}, {100, 196}),
                             tensor("gate_up_proj_scale_inv", Dtype::f32, {1, 1}, {196, 200}),
                             tensor("gate_up_proj_activation_scale", Dtype::f32, {}, {200, 204}),
                             tensor("down_proj", Dtype::f8_e4m3, {8, 6}, {204, 252}),
                             tensor("down_proj_scale_inv", Dtype::f32, {1, 1}, {252, 256})});
  CHECK(found.size() == 6);
  check_part(found, "gate_proj.weight", {6, 8}, {100, 148});
  check_part(found, "up_proj.weight", {6, 8}, {148, 196});
  check_part(found, "gate_proj.weight_scale_inv", {}, {196, 200});
  check_part(found, "up_proj.weight_scale_inv", {}, {196, 200});
  check_part(found, "down_proj.weight", {8, 6}, {204, 252});
  check_part(found, "down_proj.weight_scale_inv", {}, {252, 256});
}

TEST_CASE("fused projections: scales of rows and of blocks are halved like the rows") {
  const auto found = within({tensor("gate_up_proj", Dtype::f8_e4m3, {256, 128}, {0, 32768}),
                             tensor("gate_up_proj_scale", Dtype::bf16, {256, 1}, {32768, 33280}),
                             tensor("down_proj", Dtype::f8_e4m3, {128, 128}, {33280, 49664}),
                             tensor("down_proj_scale", Dtype::bf16, {128, 1}, {49664, 49920})});
  check_part(found, "gate_proj.weight_scale", {128, 1}, {32768, 33024});
  check_part(found, "up_proj.weight_scale", {128, 1}, {33024, 33280});
  check_part(found, "down_proj.weight_scale", {128, 1}, {49664, 49920});
}

TEST_CASE("fused projections: none where matrices lie turned, or there is nothing beside them") {
  CHECK(within({tensor("gate_up_proj", Dtype::bf16, {8, 12}, {0, 192}),
                tensor("down_proj", Dtype::bf16, {6, 8}, {192, 288})})
            .empty());
  CHECK(within({tensor("gate_up_proj", Dtype::bf16, {12, 8}, {0, 192})}).empty());
  CHECK(within({tensor("gate_up_proj", Dtype::bf16, {13, 8}, {0, 208}),
                tensor("down_proj", Dtype::bf16, {8, 6}, {208, 304})})
            .empty());
  CHECK(within({tensor("gate_proj.weight", Dtype::bf16, {6, 8}, {0, 96})}).empty());
  // Three rows of scales cannot be shared by two matrices.
  const auto odd = within({tensor("gate_up_proj", Dtype::f8_e4m3, {12, 8}, {0, 96}),
                           tensor("gate_up_proj_scale_inv", Dtype::f32, {3, 1}, {96, 108}),
                           tensor("down_proj", Dtype::f8_e4m3, {8, 6}, {108, 156})});
  CHECK(std::ranges::none_of(odd, [](const TensorEntry& part) { return part.name.ends_with("scale_inv"); }));
}

}  // namespace
}  // namespace dspack::format::checkpoint_builder_test
