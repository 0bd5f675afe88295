#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "reshard/plan.h"
#include "tests/support/small_checkpoint.h"

using namespace dspack;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

format::Checkpoint open(const TempFolder& folder) {
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  return format::Checkpoint::open(*repository, 1, {}).value();
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
      CHECK(file.data_start % format::kPageBytes == 0);
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
