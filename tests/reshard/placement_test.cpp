#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "reshard/plan/plan.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::placement_test {

using namespace dspack;
using reshard::PlannedFile;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

/// The small checkpoint with twelve experts in layer 1, so that their numbers do not sort as text, and oddities: an
/// expert that lacks, an unknown sibling of odd size, tensors of no layer.
struct Planned {
  Planned() {
    for (unsigned expert = 3; expert < 13; ++expert) {
      if (expert == 5) continue;
      const std::string prefix = "model.layers.1.mlp.experts." + std::to_string(expert) + ".";
      for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
        original.add(expert % 3, prefix + part + ".weight", "F8_E4M3", {64, 64}, 1);
        original.add((expert + 1) % 3, prefix + part + ".weight_scale_inv", "F32", {1, 1}, 4);
      }
    }
    original.add(0, "model.layers.1.mlp.experts.2.odd", "U8", {3}, 1);
    original.add(1, "model.layers.1.mlp.gate.weight", "BF16", {3, 8}, 2);
    original.add(1, "something.else", "U8", {3}, 1);
    original.write(folder);
    const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
    source = format::Checkpoint::open(*repository, 1, {}).value();
  }

  [[nodiscard]] reshard::Plan by(std::string_view grouping) const {
    return reshard::make_plan({.by = reshard::parse_grouping(grouping).value()}, source).value();
  }

  [[nodiscard]] std::vector<std::string> names(const PlannedFile& file) const {
    std::vector<std::string> names;
    for (const uint32_t tensor : file.tensors)
      names.push_back(source.tensors()[tensor].name);
    return names;
  }

  SmallCheckpoint original;
  TempFolder folder;
  format::Checkpoint source;
};

std::set<std::string> paths(const reshard::Plan& plan) {
  std::set<std::string> all;
  for (const PlannedFile& file : plan.files)
    all.insert(file.path);
  return all;
}

const PlannedFile& file_at(const reshard::Plan& plan, std::string_view path) {
  for (const PlannedFile& file : plan.files) {
    if (file.path == path) return file;
  }
  FAIL("no file " << path);
  return plan.files.front();
}

std::vector<uint32_t> expert_ids(const PlannedFile& file) {
  std::vector<uint32_t> ids;
  for (const ExpertKey key : file.experts)
    ids.push_back(key.expert.value);
  return ids;
}

}  // namespace

TEST_CASE("placement: N experts of a layer share a file that is named after the first and the last") {
  const Planned planned;
  const reshard::Plan plan = planned.by("expert:4");
  CHECK(paths(plan) == std::set<std::string>{
                           "model/embed.safetensors", "model/head.safetensors", "model/other.safetensors",
                           "model/layers/000/dense.safetensors", "model/layers/000/experts/000-002.safetensors",
                           "model/layers/001/dense.safetensors", "model/layers/001/experts/000-003.safetensors",
                           "model/layers/001/experts/004-007.safetensors",
                           "model/layers/001/experts/008-011.safetensors", "model/layers/001/experts/012.safetensors"});
  CHECK(expert_ids(file_at(plan, "model/layers/001/experts/004-007.safetensors")) == std::vector<uint32_t>{4, 6, 7});
  // A group of one is the very file that it is by expert.
  const PlannedFile& lone = file_at(plan, "model/layers/001/experts/012.safetensors");
  const reshard::Plan by_expert = planned.by("expert");
  CHECK(planned_header(lone, planned.source) == planned_header(file_at(by_expert, lone.path), planned.source));
  CHECK(paths(planned.by("expert:1")) == paths(by_expert));
}

TEST_CASE("placement: by layer, all its experts share one file in the order of the source") {
  Planned planned;
  const reshard::Plan plan = planned.by("layer");
  CHECK(paths(plan) ==
        std::set<std::string>{"model/embed.safetensors", "model/head.safetensors", "model/other.safetensors",
                              "model/layers/000/dense.safetensors", "model/layers/000/experts.safetensors",
                              "model/layers/001/dense.safetensors", "model/layers/001/experts.safetensors"});
  const PlannedFile& file = file_at(plan, "model/layers/001/experts.safetensors");
  CHECK(expert_ids(file) == std::vector<uint32_t>{0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12});
  CHECK(file.layer == LayerId(1));
  std::vector<std::string> wanted;
  for (const char* suffix : {".weight", ".weight_scale_inv"}) {
    for (size_t shard = 3; shard-- > 0;) {  // the last one first
      for (const test::RawTensor& tensor : planned.original.shard(shard)) {
        if (tensor.name.starts_with("model.layers.1.mlp.experts.") && tensor.name.ends_with(suffix))
          wanted.push_back(tensor.name);
      }
    }
  }
  wanted.emplace_back("model.layers.1.mlp.experts.2.odd");  // last, for it would misalign whatever came behind it
  CHECK(planned.names(file) == wanted);
}

TEST_CASE("placement: in every grouping each tensor is aligned to its element and each matrix to a page") {
  const Planned planned;
  for (const char* by : {"expert", "expert:2", "expert:5", "layer", "shard:20000", "shard:50KB", "shard:5GB"}) {
    CAPTURE(by);
    size_t matrices = 0;
    for (const PlannedFile& file : planned.by(by).files) {
      for (size_t i = 0; i < file.tensors.size(); ++i) {
        const format::TensorEntry& tensor = planned.source.tensors()[file.tensors[i]];
        CHECK(file.offsets[i] % (bits_of(tensor.dtype) / 8) == 0);
        if (tensor.range.size() % kPageBytes != 0) continue;
        CHECK(file.offsets[i] % kPageBytes == 0);
        ++matrices;
      }
    }
    CHECK(matrices == 3 * (3 + 12));
  }
}

TEST_CASE("placement: shards hold the model in its order, and what belongs together is not parted") {
  const Planned planned;
  // Small steps, so that some shards miss their limit by less than a header.
  for (uint64_t limit = 5000; limit < 300'000; limit += 2003) {
    CAPTURE(limit);
    const reshard::Plan plan = planned.by("shard:" + std::to_string(limit));
    std::vector<std::tuple<int, uint32_t, bool, uint32_t>> order;  // section, layer, routed, expert
    std::map<std::string, size_t> shard_of;
    std::set<ExpertKey> experts;
    for (size_t shard = 0; shard < plan.files.size(); ++shard) {
      const PlannedFile& file = plan.files[shard];
      CHECK(file.path == "model/model-" + std::string(5 - std::to_string(shard + 1).size(), '0') +
                             std::to_string(shard + 1) + "-of-" +
                             std::string(5 - std::to_string(plan.files.size()).size(), '0') +
                             std::to_string(plan.files.size()) + ".safetensors");
      CHECK(file.part == "shard");
      CHECK_FALSE(file.layer);
      decltype(order) here;
      std::set<ExpertKey> held;
      for (const uint32_t index : file.tensors) {
        const format::TensorEntry& tensor = planned.source.tensors()[index];
        const format::TensorName& place = tensor.place;
        shard_of[tensor.name] = shard;
        int section = place.layer ? 1 : 3;
        if (place.role == format::Role::embed) section = 0;
        if (place.role == format::Role::head) section = 2;
        here.emplace_back(section, place.layer ? place.layer->value : 0, place.expert.has_value(),
                          place.expert ? place.expert->value : 0);
        if (place.expert) held.insert({*place.layer, *place.expert});
      }
      CHECK(std::vector<ExpertKey>(held.begin(), held.end()) == file.experts);
      for (const ExpertKey key : held)
        CHECK(experts.insert(key).second);  // whole in one shard
      std::sort(here.begin(), here.end());
      order.insert(order.end(), here.begin(), here.end());
      // Larger than asked for only where one unit alone is: the largest is an expert of about 12.3 kB.
      if (file.size_bytes > limit) CHECK(held.size() + (file.tensors.size() - held.size() * 6) <= 2);
    }
    CHECK(std::is_sorted(order.begin(), order.end()));
    CHECK(experts.size() == 15);
    CHECK(shard_of.at("model.layers.1.self_attn.q_a_proj.weight") ==
          shard_of.at("model.layers.1.self_attn.q_a_proj.weight_scale_inv"));
    if (limit < planned.source.payload_bytes()) CHECK(plan.files.size() > 1);
  }
}

TEST_CASE("placement: a shard is not smaller than it needs to be") {
  const Planned planned;
  constexpr uint64_t kLimit = 60'000;
  const reshard::Plan plan = planned.by("shard:60000");
  REQUIRE(plan.files.size() > 2);
  for (size_t i = 0; i + 1 < plan.files.size(); ++i) {
    CHECK(plan.files[i].size_bytes <= kLimit);
    // The next unit, its header and one page of rounding would not have fitted.
    CHECK(plan.files[i].size_bytes + 3 * 4096 + 3 * 4 + 3 + 2 * kPageBytes > kLimit);
  }
}

TEST_CASE("placement: grouped experts are a few extents: their matrices, and their scales behind all matrices") {
  const Planned planned;
  for (const char* by : {"expert:4", "layer", "shard:50KB"}) {
    for (const PlannedFile& file : planned.by(by).files) {
      std::map<ExpertKey, std::vector<std::pair<uint64_t, uint64_t>>> runs;
      for (size_t i = 0; i < file.tensors.size(); ++i) {
        const format::TensorEntry& tensor = planned.source.tensors()[file.tensors[i]];
        if (!tensor.place.expert) continue;
        auto& mine = runs[{*tensor.place.layer, *tensor.place.expert}];
        const uint64_t end = file.offsets[i] + tensor.range.size();
        if (!mine.empty() && mine.back().second == file.offsets[i])
          mine.back().second = end;
        else
          mine.emplace_back(file.offsets[i], end);
      }
      for (const auto& [key, extents] : runs) {
        CAPTURE(file.path);
        const bool parted = key.expert.value < 3;  // between two shards of the source
        CHECK(extents.front().second - extents.front().first >= (parted ? 1 : 3) * 4096);
        const bool odd = key == ExpertKey{LayerId(1), ExpertId(2)};
        CHECK(extents.size() <= 2U + (odd ? 1 : 0) + (parted ? 1 : 0));
      }
    }
  }
}

}  // namespace dspack::placement_test
