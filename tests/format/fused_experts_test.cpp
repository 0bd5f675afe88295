#include <doctest/doctest.h>

#include "format/checkpoint.h"
#include "format/fused_experts.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::fused_experts_test {

using namespace dspack;
using format::FusedExperts;
using format::TensorInfo;
using test::TempFolder;

namespace {

const std::string kExperts = "model.layers.3.mlp.experts.";

/// A tensor of a header, with the bytes that its shape asks for from `begin` on.
TensorInfo tensor(const std::string& name, Dtype dtype, std::vector<uint64_t> shape, uint64_t begin = 0) {
  const uint64_t bytes = format::tensor_bytes(dtype, shape).value();
  return {.name = name, .dtype = dtype, .shape = std::move(shape), .data = {begin, begin + bytes}};
}

/// A layer as gpt-oss has it, four experts.
std::vector<TensorInfo> layer() {
  return {tensor(kExperts + "gate_up_proj_blocks", Dtype::u8, {4, 6, 2, 16}),
          tensor(kExperts + "gate_up_proj_scales", Dtype::u8, {4, 6, 2}),
          tensor(kExperts + "gate_up_proj_bias", Dtype::bf16, {4, 6}),
          tensor(kExperts + "down_proj_blocks", Dtype::u8, {4, 5, 3, 16})};
}

FusedExperts decide(const std::vector<std::vector<TensorInfo>>& shards) {
  const std::vector<std::span<const TensorInfo>> spans(shards.begin(), shards.end());
  return FusedExperts(spans);
}

/// Why a layer of these tensors stays whole; all of them do.
std::string doubt(const std::vector<TensorInfo>& tensors) {
  const FusedExperts fused = decide({tensors});
  for (const TensorInfo& one : tensors)
    CHECK_FALSE(fused.split(one));
  return fused.warning().value_or("no doubt");
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("fused experts: slices are one tensor an expert, without the axis") {
  const auto slices = format::slices_of(tensor(kExperts + "gate_up_proj_bias", Dtype::bf16, {3, 6}, 100)).value();
  REQUIRE(slices.size() == 3);
  for (uint64_t i = 0; i < 3; ++i) {
    CHECK(slices[i].name == kExperts + std::to_string(i) + ".gate_up_proj_bias");
    CHECK(slices[i].dtype == Dtype::bf16);
    CHECK(slices[i].shape == std::vector<uint64_t>{6});
    CHECK(slices[i].data == ByteRange{100 + 12 * i, 112 + 12 * i});
  }
  CHECK(format::slices_of(tensor(kExperts + "down_proj_scale", Dtype::f32, {3})).value()[2].shape.empty());
}

TEST_CASE("fused experts: elements of less than a byte are cut where a slice is whole bytes") {
  CHECK(format::slices_of(tensor(kExperts + "down_proj", Dtype::f4, {4, 3, 2})).value()[1].data == ByteRange{3, 6});
  CHECK_FALSE(format::slices_of(tensor(kExperts + "down_proj", Dtype::f4, {4, 3, 1})));
  CHECK(mentions(doubt({tensor(kExperts + "down_proj", Dtype::f4, {4, 3, 1})}), "whole bytes"));
}

TEST_CASE("fused experts: a layer may lie in several shards") {
  const std::vector<TensorInfo> all = layer();
  const FusedExperts fused = decide({{all[0], all[2]}, {all[1], all[3]}});
  CHECK_FALSE(fused.warning());
  for (const TensorInfo& one : all)
    CHECK(fused.split(one).value().size() == 4);
  CHECK_FALSE(fused.split(tensor("model.layers.3.mlp.router.weight", Dtype::bf16, {4, 2})));
  CHECK_FALSE(fused.split(tensor("model.layers.4.mlp.experts.down_proj", Dtype::bf16, {4, 2, 2})));
}

TEST_CASE("fused experts: what is not certain stays whole, and is told") {
  std::vector<TensorInfo> tensors = layer();
  SUBCASE("numbers of experts that differ") {
    tensors.push_back(tensor(kExperts + "down_proj_scales", Dtype::u8, {5, 5, 3}));
    CHECK(doubt(tensors) == "layer 3: \"" + kExperts + "gate_up_proj_blocks\" U8 [4,6,2,16] and \"" + kExperts +
                                "down_proj_scales\" U8 [5,5,3] differ in the number of experts, so its experts are not "
                                "separated");
  }
  SUBCASE("one number for all of them stays whole, and its layer is cut all the same") {
    tensors.push_back(tensor(kExperts + "down_proj_input_scale", Dtype::f32, {}));
    tensors.push_back(tensor(kExperts + "gate_up_proj_activation_scale", Dtype::f32, {1}));
    const std::span<const TensorInfo> shard(tensors);
    const FusedExperts fused(std::span(&shard, 1));
    CHECK_FALSE(fused.warning().has_value());
    CHECK(fused.split(tensors.front()).has_value());
    CHECK_FALSE(fused.split(tensors.back()).has_value());
    CHECK_FALSE(fused.split(tensors[tensors.size() - 2]).has_value());
  }
  SUBCASE("experts with numbers beside them") {
    tensors.push_back(tensor(kExperts + "0.down_proj.weight", Dtype::u8, {4, 2, 2}));
    CHECK(mentions(doubt(tensors), "numbered experts"));
  }
  SUBCASE("no matrix") {
    CHECK(mentions(doubt({tensors[2]}), "no matrix of each expert"));
  }
  SUBCASE("a single expert") {
    CHECK(mentions(doubt({tensor(kExperts + "down_proj", Dtype::u8, {1, 2, 2})}), "cannot be cut"));
  }
  SUBCASE("no bytes") {
    CHECK(mentions(doubt({tensor(kExperts + "down_proj", Dtype::u8, {4, 0, 2})}), "cannot be cut"));
  }
  SUBCASE("nothing that looks like a projection is not spoken of here") {
    CHECK(doubt({tensor(kExperts + "weird", Dtype::u8, {4, 2, 2})}) == "no doubt");
  }
  SUBCASE("several layers are one warning") {
    std::vector<TensorInfo> layers;
    for (int i = 0; i < 5; ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".mlp.experts.";
      layers.push_back(tensor(prefix + "down_proj", Dtype::u8, {1, 2, 2}));
    }
    CHECK(mentions(doubt(layers), "4 more layers likewise"));
  }
}

TEST_CASE("fused experts: absurd numbers of experts cost nothing") {
  const uint64_t huge = 1ULL << 40;
  CHECK_FALSE(format::slices_of(tensor(kExperts + "down_proj", Dtype::u8, {huge, 1, 1})));
  CHECK(mentions(doubt({tensor(kExperts + "down_proj", Dtype::u8, {huge, 1, 1})}), "cannot be cut"));
  std::vector<TensorInfo> layers;
  constexpr size_t kFitting = format::kMaxSlices / kMaxId;
  for (size_t i = 0; i <= kFitting; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".mlp.experts.";
    layers.push_back(tensor(prefix + "down_proj", Dtype::u8, {kMaxId, 1, 1}));
  }
  const FusedExperts fused = decide({layers});
  CHECK(fused.split(layers[kFitting - 1]).has_value());
  CHECK_FALSE(fused.split(layers[kFitting]));
  CHECK(mentions(fused.warning().value(), "layer " + std::to_string(kFitting) + ": "));
  CHECK(mentions(fused.warning().value(), "more than 250000 tensors"));
}

TEST_CASE("fused experts: a catalogue has the slices, and the index the whole tensors") {
  const TempFolder folder;
  test::SmallCheckpoint checkpoint;
  const std::string prefix = "model.layers.2.mlp.experts.";
  checkpoint.add(0, prefix + "gate_up_proj", "BF16", {3, 4, 2}, 2);
  checkpoint.add(1, prefix + "down_proj", "BF16", {3, 2, 2}, 2);
  checkpoint.add(0, "model.layers.2.mlp.gate.weight", "BF16", {3, 2}, 2);
  checkpoint.write(folder);
  const auto open = [&] {
    const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
    return format::Checkpoint::open(*repository, 1, {});
  };
  const auto opened = open();
  REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
  CHECK(opened->expert_doubts().empty());
  REQUIRE(opened->fused().size() == 2);
  CHECK(opened->fused()[0].name == prefix + "gate_up_proj");
  CHECK(opened->find(prefix + "gate_up_proj") == nullptr);
  const auto tensors = opened->expert({LayerId(2), ExpertId(2)});
  REQUIRE(tensors.size() == 2);
  const format::TensorEntry& slice = opened->tensors()[tensors[1]];
  CHECK(slice.name == prefix + "2.gate_up_proj");
  const std::string shard = folder.read(opened->files()[slice.file].path);
  for (const test::RawTensor& raw : checkpoint.shard(0)) {
    if (raw.name == prefix + "gate_up_proj")
      CHECK(shard.substr(slice.range.begin, slice.range.size()) == raw.bytes.substr(2 * 16, 16));
  }

  std::string index = folder.read("model.safetensors.index.json");
  const size_t at = index.find(prefix + "gate_up_proj");
  REQUIRE(at != std::string::npos);
  SUBCASE("a whole tensor that the index has elsewhere is a contradiction") {
    index.replace(index.find("model-0000", at), 11, "model-00002");
    folder.write("model.safetensors.index.json", index);
    const auto refused = open();
    REQUIRE_FALSE(refused.has_value());
    CHECK(mentions(refused.error().message, "gate_up_proj\" should be in"));
  }
  SUBCASE("one that the index lacks counts once, as it is stored") {
    index.replace(at, 1, "x");  // what the index now names is not there
    folder.write("model.safetensors.index.json", index);
    CHECK(mentions(open().error().message, "xodel.layers.2"));
    index.erase(at - 1, index.find(',', at) + 1 - (at - 1));
    folder.write("model.safetensors.index.json", index);
    const auto kept = open();
    REQUIRE_MESSAGE(kept.has_value(), kept.error().message);
    REQUIRE_FALSE(kept->warnings().empty());
    CHECK(mentions(kept->warnings()[0], "1 tensor of the shards"));
  }
}

}  // namespace dspack::fused_experts_test
