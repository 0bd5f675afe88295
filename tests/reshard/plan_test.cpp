#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "reshard/plan/plan.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::plan_test {

using namespace dspack;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

format::Checkpoint open(const TempFolder& folder) {
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  return format::Checkpoint::open(*repository, 1, {}).value();
}

reshard::Plan plan_of(const std::string& recipe, const format::Checkpoint& source,
                      const reshard::SourceFacts& facts = {}) {
  return reshard::make_plan(reshard::parse_recipe(R"({"by":"expert",)" + recipe + "}").value(), source, facts).value();
}

reshard::Plan plan_by(std::string_view by, const format::Checkpoint& source) {
  return reshard::make_plan({.by = reshard::parse_grouping(by).value()}, source).value();
}

}  // namespace

TEST_CASE("plan: every byte of every shard goes to exactly one place, in every grouping") {
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  const format::Checkpoint source = open(folder);
  for (const char* by : {"expert", "expert:2", "layer", "shard:20000", "shard:4097", "shard:5GB"}) {
    CAPTURE(by);
    const reshard::Plan plan = plan_by(by, source);
    REQUIRE(plan.shards.size() == 3);
    uint64_t copied = 0;
    for (size_t shard = 0; shard < 3; ++shard) {
      uint64_t at = source.files()[shard].data_start;
      for (const reshard::Copy& copy : plan.shards[shard]) {
        CHECK(copy.source.begin == at);
        at = copy.source.end;
        copied += copy.source.size();
        CHECK(plan.files[copy.file].tensors[copy.slot] == copy.tensor);
        CHECK(plan.files[copy.file].offsets[copy.slot] == copy.offset);
      }
      CHECK(at == source.files()[shard].size_bytes);
    }
    CHECK(copied == source.payload_bytes());
    for (const reshard::PlannedFile& file : plan.files) {
      uint64_t at = file.data_start;
      for (size_t i = 0; i < file.tensors.size(); ++i) {
        CHECK(file.offsets[i] == at);
        at += source.tensors()[file.tensors[i]].range.size();
      }
      CHECK(at == file.size_bytes);
      CHECK(file.data_start % kPageBytes == 0);
      CHECK(reshard::planned_header(file, source).size() == file.data_start);
    }
    CHECK(std::is_sorted(plan.files.begin(), plan.files.end(),
                         [](const auto& a, const auto& b) { return a.path < b.path; }));
  }
}

TEST_CASE("plan: one file for each routed expert, the rest of a layer together, nothing at the top") {
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  checkpoint.add(0, "model.layers.1.mlp.experts.2.unknown_suffix", "U8", {3}, 1);
  checkpoint.add(0, "something.else", "U8", {3}, 1);
  checkpoint.write(folder);
  const format::Checkpoint source = open(folder);
  const reshard::Plan plan = reshard::make_plan({}, source).value();
  std::set<std::string> paths;
  for (const reshard::PlannedFile& file : plan.files) {
    paths.insert(file.path);
    if (file.path == "model/layers/001/experts/002.safetensors") CHECK(file.tensors.size() == 7);
  }
  CHECK(paths ==
        std::set<std::string>{"model/embed.safetensors", "model/head.safetensors", "model/other.safetensors",
                              "model/layers/000/dense.safetensors", "model/layers/000/experts/000.safetensors",
                              "model/layers/000/experts/001.safetensors", "model/layers/000/experts/002.safetensors",
                              "model/layers/001/dense.safetensors", "model/layers/001/experts/000.safetensors",
                              "model/layers/001/experts/001.safetensors", "model/layers/001/experts/002.safetensors"});
}

TEST_CASE("plan: an FP8 weight without its scale is refused by name") {
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  checkpoint.add(0, "model.layers.1.mlp.experts.3.up_proj.weight", "F8_E4M3", {4, 4}, 1);
  checkpoint.write(folder);
  const format::Checkpoint source = open(folder);
  const auto plan = reshard::make_plan({}, source);
  REQUIRE_FALSE(plan.has_value());
  CHECK(plan.error().message.find("experts.3.up_proj.weight_scale_inv") != std::string::npos);
}

TEST_CASE("plan: a name that would be taken for a template is refused, others with braces are not") {
  for (const char* name : {"model.layers.1.mlp.experts.{expert}.w", "model.layers.1.mlp.experts.{expert[3]}.w"}) {
    const TempFolder folder;
    SmallCheckpoint checkpoint;
    checkpoint.add(0, name, "U8", {4}, 1);
    checkpoint.write(folder);
    const format::Checkpoint source = open(folder);
    const auto plan = reshard::make_plan({}, source);
    REQUIRE_FALSE(plan.has_value());
    CHECK(plan.error().message.find(name) != std::string::npos);
  }
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  checkpoint.add(0, "model.layers.{layer}.mlp.experts.{expert}.w", "U8", {4}, 1);
  checkpoint.add(0, "model.layers.1.{expert}.w", "U8", {4}, 1);
  checkpoint.write(folder);
  const format::Checkpoint source = open(folder);
  CHECK(reshard::make_plan({}, source).has_value());
}

TEST_CASE("plan: its digest tells recipes and sources apart, and nothing else") {
  const TempFolder folder;
  const TempFolder same;
  const TempFolder other;
  SmallCheckpoint().write(folder);
  SmallCheckpoint().write(same);
  SmallCheckpoint changed;
  changed.add(0, "x", "U8", {1}, 1);
  changed.write(other);
  const auto digest = [](const TempFolder& f, std::string_view by = "expert") {
    const format::Checkpoint source = open(f);
    return plan_by(by, source).digest;
  };
  CHECK(digest(folder) == digest(same));
  CHECK(digest(folder) != digest(other));
  CHECK(digest(folder) == digest(folder, "expert:1"));
  CHECK(digest(folder, "shard:20KB") == digest(folder, "shard:20000"));
  const std::set<std::string> different = {digest(folder), digest(folder, "expert:2"), digest(folder, "layer"),
                                           digest(folder, "shard:20000"), digest(folder, "shard:20001")};
  CHECK(different.size() == 5);
}

TEST_CASE("plan: row blocks are for two-dimensional embeddings only, and about a MiB") {
  format::TensorEntry embed{.name = "model.embed_tokens.weight",
                            .place = {.role = format::Role::embed, .layer = {}, .expert = {}},
                            .dtype = Dtype::bf16,
                            .shape = {129280, 7168},
                            .file = 0,
                            .range = {0, 129280ULL * 7168 * 2},
                            .digest = {}};
  CHECK(reshard::rows_per_block(embed) == 73);
  embed.shape = {1, 1 << 30};
  embed.range = {0, 1ULL << 31};
  CHECK(reshard::rows_per_block(embed) == 1);
  embed.place.role = format::Role::head;
  CHECK(reshard::rows_per_block(embed) == 0);
}

TEST_CASE("plan: of a shard that is not all wanted no more is read than what is, and small gaps") {
  const TempFolder folder;
  SmallCheckpoint checkpoint;  // first in shard 0, and far behind each other
  checkpoint.add(0, "near.a", "U8", {10}, 1);
  checkpoint.add(0, "near.gap", "U8", {65'536}, 1);
  checkpoint.add(0, "near.b", "U8", {10}, 1);
  checkpoint.add(0, "far.gap", "U8", {65'537}, 1);
  checkpoint.add(0, "near.c", "U8", {10}, 1);
  checkpoint.add(0, "last.gap", "U8", {1}, 1);
  checkpoint.write(folder);
  const format::Checkpoint source = open(folder);
  const reshard::Plan plan = plan_of(R"("include":{"name":"near.[abc]"})", source);
  const auto range = [&](const char* name) { return source.find(name)->range; };
  REQUIRE(plan.reads.size() == 3);
  CHECK_FALSE(plan.complete);
  CHECK_FALSE(plan.reads[0].whole);
  CHECK(plan.reads[0].ranges == std::vector<ByteRange>{{range("near.a").begin, range("near.b").end}, range("near.c")});
  CHECK(plan.reads[0].bytes() == 65'536 + 30);
  CHECK(plan.source_bytes == 65'536 + 30);
  for (const size_t shard : {1, 2}) {  // of which nothing is wanted
    CHECK_FALSE(plan.reads[shard].whole);
    CHECK(plan.reads[shard].ranges.empty());
    CHECK(plan.shards[shard].empty());
  }
  CHECK(plan.result.tensors().size() == 3);
  CHECK(plan.files.size() == 1);
}

TEST_CASE("plan: a shard that is all wanted is read whole, whatever becomes of it, and only then") {
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  const format::Checkpoint source = open(folder);
  const auto whole = [&](const std::string& recipe) {
    std::vector<bool> result;
    const reshard::Plan plan = plan_of(recipe, source, {.decoder_layers = 1, .exact_scales = {}});
    for (size_t i = 0; i < 3; ++i) {
      result.push_back(plan.reads[i].whole);
      if (!plan.reads[i].whole) continue;
      CHECK(plan.reads[i].ranges ==
            std::vector<ByteRange>{{source.files()[i].data_start, source.files()[i].size_bytes}});
    }
    return result;
  };
  CHECK(whole(R"("transform":"fp8-to-bf16")") == std::vector<bool>{true, true, true});
  CHECK(whole(R"("drop_mtp":true)") == std::vector<bool>{false, false, false});
  CHECK(whole(R"("exclude":{"name":"lm_head.weight"})") == std::vector<bool>{true, true, false});
  // Weights without their scales, which the transform needs all the same.
  CHECK(whole(R"("exclude":{"name":"*_scale_inv"},"transform":"fp8-to-f32")") == std::vector<bool>{true, true, true});
  CHECK(whole(R"("include":{"role":["routed_expert"]},"transform":"fp8-to-f32")") ==
        std::vector<bool>{false, false, false});
}

TEST_CASE("plan: scales that a transform uses up are read for their digest and go nowhere") {
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  const format::Checkpoint source = open(folder);
  const reshard::Plan plan = plan_of(R"("transform":{"kind":"fp8-to-bf16","role":"attention"})", source);
  size_t nowhere = 0;
  size_t converted = 0;
  for (const auto& copies : plan.shards) {
    uint64_t end = 0;
    for (const reshard::Copy& copy : copies) {
      CHECK(copy.source.begin >= end);
      end = copy.source.end;
      const std::string& name = source.tensors()[copy.tensor].name;
      if (copy.file == reshard::kNoFile) {
        CHECK(name.ends_with("q_a_proj.weight_scale_inv"));
        CHECK(copy.conversion == reshard::Conversion::none);
        ++nowhere;
        continue;
      }
      const reshard::PlannedFile& file = plan.files[copy.file];
      const format::TensorEntry& made = plan.result.tensors()[file.tensors[copy.slot]];
      CHECK(made.name == name);
      CHECK(made.range.size() == copy.bytes);
      CHECK(file.offsets[copy.slot] == copy.offset);
      if (copy.conversion == reshard::Conversion::none) continue;
      CHECK(copy.bytes == 2 * copy.source.size());
      CHECK(source.tensors()[copy.needs.at(0)].name == name + "_scale_inv");
      ++converted;
    }
  }
  CHECK(nowhere == 2);
  CHECK(converted == 2);
  CHECK(plan.complete);
}

TEST_CASE("plan: a matrix and its new scales are made of the same bytes, side by side") {
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  checkpoint.add(1, "model.layers.0.mlp.down_proj.weight", "BF16", {8, 8}, 2);
  checkpoint.write(folder);
  const format::Checkpoint source = open(folder);
  const reshard::Plan plan = plan_of(R"("transform":"bf16-to-fp8")", source);
  const auto& last = plan.shards[1];
  REQUIRE(last.size() >= 2);
  const reshard::Copy& weight = last[last.size() - 2];
  const reshard::Copy& scales = last.back();
  CHECK(weight.conversion == reshard::Conversion::bf16_to_fp8);
  CHECK(scales.conversion == reshard::Conversion::bf16_scales);
  CHECK(weight.tensor == scales.tensor);
  CHECK(weight.bytes == 64);
  CHECK(scales.bytes == 4);
}

TEST_CASE("plan: tensors without bytes are taken or left, at the border of what is read too") {
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  checkpoint.add(1, "empty.a", "F32", {0, 4}, 4);
  checkpoint.add(1, "some", "U8", {4}, 1);
  checkpoint.add(1, "empty.b", "F32", {4, 0}, 4);
  checkpoint.write(folder);
  const format::Checkpoint source = open(folder);
  const reshard::Plan only = plan_of(R"("include":{"name":"empty.*"})", source);
  CHECK(only.reads[1].ranges.empty());
  CHECK(only.shards[1].size() == 2);
  const reshard::Plan both = plan_of(R"("include":{"name":["empty.?","some"]})", source);
  CHECK(both.reads[1].ranges == std::vector<ByteRange>{source.find("some")->range});
  REQUIRE(both.shards[1].size() == 3);
  CHECK(source.tensors()[both.shards[1][0].tensor].name == "empty.a");
  CHECK(source.tensors()[both.shards[1][2].tensor].name == "empty.b");
}

TEST_CASE("plan: its digest tells selections, transforms and what was learnt of the weights apart") {
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  const format::Checkpoint source = open(folder);
  const auto digest = [&](const std::string& recipe, const reshard::SourceFacts& facts = {}) {
    return plan_of(recipe, source, facts).digest;
  };
  const uint32_t scales = static_cast<uint32_t>(source.find("model.layers.0.self_attn.q_a_proj.weight_scale_inv") -
                                                source.tensors().data());
  const std::set<std::string> different = {
      digest(R"("transform":"fp8-to-bf16")"),
      digest(R"("transform":"fp8-to-f32")"),
      digest(R"("transform":{"kind":"fp8-to-bf16","layers":"0"})"),
      digest(R"("include":{"layers":"0"})"),
      digest(R"("include":{"layers":"1"})"),
      digest(R"("exclude":{"layers":"0"})"),
      digest(R"("drop_mtp":true)", {.decoder_layers = 1, .exact_scales = {}}),
      digest(R"("transform":"scales-to-e8m0")"),
      digest(R"("transform":"scales-to-e8m0")", {.decoder_layers = {}, .exact_scales = {scales}}),
      plan_by("expert", source).digest};
  CHECK(different.size() == 10);
  CHECK(digest(R"("include":{"layers":"0-1"})") == digest(R"("include":{"layers":"1,0"})"));
}

}  // namespace dspack::plan_test
