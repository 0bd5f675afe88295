// A packed part of a model and the checkpoint that it was made from: one catalogue of both, and the proof that they
// belong together.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "format/checkpoint_builder.h"
#include "format/kept_headers.h"
#include "format/part/completion.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::part_test {

using namespace dspack;
using format::Checkpoint;
using format::Manifest;
using format::TensorEntry;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

using Wanted = std::function<bool(const std::string&)>;

Checkpoint open(const TempFolder& folder) {
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  return Checkpoint::open(*repository, 1, {}).value();
}

Checkpoint small() {
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  return open(folder);
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

format::Digest digest_of(std::string_view text) {
  return format::sha256(text);
}

/// The manifest of one file that holds these tensors of the whole.
Manifest manifest_of(const Checkpoint& whole, const Wanted& wanted) {
  Manifest manifest;
  manifest.recipe = {{"by", "shard:1G"}};
  manifest.coverage.of = format::Extension{.layers = 2, .experts = 6, .tensors = whole.tensors().size()};
  format::PackedFile file;
  file.path = "model/part.safetensors";
  file.part = "shard";
  format::Layout layout;
  uint64_t at = 0;
  std::map<ExpertKey, format::Digest> experts;
  for (const TensorEntry& tensor : whole.tensors()) {
    if (!wanted(tensor.name)) continue;
    layout.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {at, at + tensor.range.size()}});
    at += tensor.range.size();
    file.tensors.push_back(digest_of(tensor.name));
    if (tensor.place.expert) experts[{*tensor.place.layer, *tensor.place.expert}] = digest_of("expert");
  }
  for (const auto& [key, digest] : experts)
    file.experts.push_back({key, digest});
  file.data_start = 4096;
  file.size_bytes = file.data_start + at;
  manifest.layouts.push_back(layout);
  manifest.files.push_back(file);
  for (const format::CheckpointFile& shard : whole.files())
    manifest.source.push_back({shard.path, shard.size_bytes, {}, 0});
  manifest.companions.push_back({format::kHeadersPath, 1, digest_of("headers")});
  return manifest;
}

Checkpoint packed(Manifest manifest) {
  format::CheckpointBuilder builder;
  REQUIRE(builder.set_manifest(std::move(manifest)).has_value());
  return builder.finish();
}

Checkpoint part_of(const Checkpoint& whole, const Wanted& wanted) {
  return packed(manifest_of(whole, wanted));
}

bool in_layer_1(const std::string& name) {
  return name.starts_with("model.layers.1.");
}

/// What is in the catalogue and from which of the two: true: from the part.
std::map<std::string, bool> sides(const format::Completion& completion, size_t part_files) {
  std::map<std::string, bool> found;
  for (const TensorEntry& tensor : completion.catalogue.tensors())
    found[tensor.name] = tensor.file < part_files;
  return found;
}

format::Json headers_of(const Checkpoint& whole) {
  format::Json headers = format::Json::object();
  for (const format::CheckpointFile& file : whole.files())
    headers[file.path] = file.header.substr(8);
  return headers;
}

std::string difference(const Checkpoint& part, const format::Json& headers, const Checkpoint& other,
                       bool versions_are_digests = false) {
  const auto same = format::compare_sources(part, headers, other, versions_are_digests);
  return same ? "none" : same.error().message;
}

}  // namespace

TEST_CASE("part: what it lacks comes from the whole, in files behind its own") {
  const Checkpoint whole = small();
  const Checkpoint part = part_of(whole, in_layer_1);
  const format::Completion both = format::complete(part, whole, {}).value();
  const Checkpoint& joined = both.catalogue;
  REQUIRE(joined.files().size() == 4);
  CHECK(joined.files()[0].path == "model/part.safetensors");
  CHECK(joined.files()[1].path == whole.files()[0].path);
  CHECK(joined.tensors().size() == whole.tensors().size());
  CHECK(joined.experts().size() == 6);
  CHECK(both.own.size() == joined.tensors().size());
  for (uint32_t i = 0; i < joined.tensors().size(); ++i) {
    const TensorEntry& tensor = joined.tensors()[i];
    const bool is_of_part = tensor.file == 0;
    CHECK(is_of_part == in_layer_1(tensor.name));
    const TensorEntry& own = (is_of_part ? part : whole).tensors()[both.own[i]];
    CHECK(own.name == tensor.name);
    CHECK(own.range == tensor.range);
    CHECK(own.file + (is_of_part ? 0 : 1) == tensor.file);
  }
  CHECK(std::ranges::is_sorted(both.absent));
  CHECK(both.absent.size() + part.tensors().size() == whole.tensors().size());
  // Nothing is missing any more that the whole does not miss.
  CHECK_FALSE(format::is_part(joined));
  CHECK(joined.manifest()->coverage.tensors == whole.tensors().size());
}

TEST_CASE("part: an expert of which some tensors are absent comes whole from the other place") {
  const Checkpoint whole = small();
  const Checkpoint part =
      part_of(whole, [](const std::string& name) { return !has(name, "layers.0.mlp.experts.1.up_proj"); });
  const format::Completion both = format::complete(part, whole, {}).value();
  CHECK(both.absent.size() == 6);
  for (const auto& [name, is_of_part] : sides(both, 1))
    CHECK(is_of_part == !has(name, "layers.0.mlp.experts.1."));
  for (const format::Extent& extent : both.catalogue.expert_extents({LayerId(0), ExpertId(1)}))
    CHECK(extent.file > 0);
}

TEST_CASE("part: the scale of a weight that was converted is not lacking") {
  const Checkpoint whole = small();
  const std::string weight = "model.layers.1.self_attn.q_a_proj.weight";
  Manifest manifest = manifest_of(whole, [&](const std::string& name) { return name == weight; });
  auto& tensor = manifest.layouts[0].tensors[0];
  tensor.dtype = Dtype::bf16;
  tensor.data.end *= 2;
  manifest.files[0].size_bytes += tensor.data.size() / 2;
  const auto refused = format::complete(packed(manifest), whole, {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "its " + weight + " is F8_E4M3 [8, 8] and that of the part BF16 [8, 8]");
  manifest.recipe["transform"] = {{{"kind", "fp8-to-bf16"}}};
  const auto found = sides(format::complete(packed(manifest), whole, {}).value(), 1);
  CHECK_FALSE(found.contains(weight + "_scale_inv"));
  CHECK(found.at(weight));
  CHECK(found.contains("model.layers.0.self_attn.q_a_proj.weight_scale_inv"));
  CHECK(found.size() == whole.tensors().size() - 1);
}

TEST_CASE("part: layers that the recipe drops are not lacking") {
  const Checkpoint whole = small();
  const Checkpoint part = part_of(whole, [](const std::string& name) { return name == "lm_head.weight"; });
  const auto found = sides(format::complete(part, whole, 1).value(), 1);
  CHECK(found.contains("model.layers.0.input_layernorm.weight"));
  CHECK(std::ranges::none_of(found, [](const auto& entry) { return in_layer_1(entry.first); }));
}

TEST_CASE("part: of fused experts the slices are completed") {
  const TempFolder folder;
  const std::string name = "model.layers.0.mlp.experts.";
  std::vector<test::RawTensor> tensors = {{name + "gate_up_proj", "BF16", {4, 8, 16}, test::pattern(1024, 1)},
                                          {name + "down_proj", "BF16", {4, 16, 8}, test::pattern(1024, 2)}};
  folder.write("model.safetensors", test::safetensors_file(tensors));
  folder.write("config.json", "{}");
  const Checkpoint whole = open(folder);
  REQUIRE(whole.experts().size() == 4);
  const Checkpoint part =
      part_of(whole, [](const std::string& n) { return has(n, "experts.0.") || has(n, "experts.2."); });
  const format::Completion both = format::complete(part, whole, {}).value();
  CHECK(both.absent.size() == 4);
  for (const auto& [slice, is_of_part] : sides(both, 1))
    CHECK(is_of_part == (has(slice, "experts.0.") || has(slice, "experts.2.")));
  CHECK(both.catalogue.find(name + "3.down_proj")->range == whole.find(name + "3.down_proj")->range);
}

TEST_CASE("part: a tensor that the other place does not have, or has in another shape, is no part of it") {
  const Checkpoint whole = small();
  Manifest manifest = manifest_of(whole, in_layer_1);
  manifest.layouts[0].tensors[0].name = "model.layers.1.input_norm.weight";
  auto refused = format::complete(packed(manifest), whole, {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::invalid);
  CHECK(has(refused.error().message, "it has no tensor model.layers.1.input_norm.weight"));
  manifest = manifest_of(whole, in_layer_1);
  manifest.layouts[0].tensors[0].shape = {2, 4};
  refused = format::complete(packed(manifest), whole, {});
  REQUIRE_FALSE(refused.has_value());
  CHECK(has(refused.error().message, "is BF16 [8] and that of the part BF16 [2, 4]"));
}

TEST_CASE("part: two parts are one model, or as much of it as they have") {
  const Checkpoint whole = small();
  const Checkpoint part = part_of(whole, in_layer_1);
  const Checkpoint rest = part_of(whole, [](const std::string& name) {
    return !in_layer_1(name) && name != "model.layers.0.input_layernorm.weight";
  });
  const format::Completion both = format::complete(part, rest, {}).value();
  CHECK(both.catalogue.tensors().size() == whole.tensors().size() - 1);
  CHECK(format::is_part(both.catalogue));
}

TEST_CASE("same source: paths, sizes, headers and the number of shards are compared") {
  const Checkpoint whole = small();
  const Manifest manifest = manifest_of(whole, in_layer_1);
  const format::Json headers = headers_of(whole);
  CHECK(difference(packed(manifest), headers, whole) == "none");
  Manifest changed = manifest;
  changed.source[1].size_bytes += 1;
  CHECK(has(difference(packed(changed), headers, whole), SmallCheckpoint::shard_name(1) + " has "));
  changed = manifest;
  changed.source[1].path = "other.safetensors";
  CHECK(has(difference(packed(changed), headers, whole), "it has no other.safetensors"));
  changed = manifest;
  changed.source.pop_back();
  CHECK(has(difference(packed(changed), headers, whole), "it has 3 shards, and the part's source had 2"));
  for (const format::Json& header : {format::Json("{}"), format::Json(7)}) {
    format::Json others = headers;
    others[SmallCheckpoint::shard_name(2)] = header;
    CHECK(has(difference(packed(manifest), others, whole), SmallCheckpoint::shard_name(2) + " has another header"));
  }
  CHECK(has(difference(packed(manifest), format::Json::object(), whole), "has another header"));
}

TEST_CASE("same source: digests count where both sides know them") {
  TempFolder folder;
  SmallCheckpoint().write(folder);
  const Checkpoint whole = open(folder);
  Manifest manifest = manifest_of(whole, in_layer_1);
  manifest.source[0].sha256 = digest_of("the first shard");
  const Manifest same = manifest;
  // A folder declares none: its versions are sizes and times.
  CHECK(difference(packed(manifest), headers_of(whole), whole) == "none");
  CHECK(difference(packed(manifest), headers_of(whole), whole, true) == "none");
  CHECK(difference(packed(manifest), {}, packed(same)) == "none");
  Manifest other = same;
  other.source[0].sha256 = digest_of("another");
  CHECK(has(difference(packed(manifest), {}, packed(other)), "has SHA-256 " + to_hex(digest_of("another"))));
  other = same;
  other.source[0].sha256.reset();
  other.companions[0].sha256 = digest_of("other headers");
  CHECK(has(difference(packed(manifest), {}, packed(other)), format::kHeadersPath));
  other.companions.clear();
  CHECK(has(difference(packed(manifest), {}, packed(other)), format::kHeadersPath));
  other = same;
  other.source.push_back({"more.safetensors", 1, {}, 0});
  CHECK(has(difference(packed(manifest), {}, packed(other)), "had more shards"));
}

TEST_CASE("same source: parts with nothing in common are of one commit") {
  const Checkpoint whole = small();
  Manifest part = manifest_of(whole, in_layer_1);
  Manifest other = manifest_of(whole, [](const std::string& name) { return !in_layer_1(name); });
  CHECK(difference(packed(part), {}, packed(other)) == "none");
  part.origin = {.kind = "hub", .repository = "o/n", .revision = std::string(40, 'a')};
  CHECK(difference(packed(part), {}, packed(other)) == "none");
  other.origin = {.kind = "hub", .repository = "o/mirror", .revision = std::string(40, 'a')};
  CHECK(difference(packed(part), {}, packed(other)) == "none");
  other.origin.revision.back() = 'b';
  CHECK(has(difference(packed(part), {}, packed(other)), "its source was o/mirror@aaaa"));
  // What both have can speak for itself.
  Manifest overlapping = manifest_of(whole, [](const std::string& name) { return !has(name, "experts"); });
  overlapping.origin = other.origin;
  CHECK(difference(packed(part), {}, packed(overlapping)) == "none");
}

TEST_CASE("same source: witnesses are small, alike in both, and those of no expert where there are some") {
  const Checkpoint whole = small();
  const auto names = [&](const Checkpoint& part) {
    std::vector<std::string> found;
    for (const format::Witness& witness : format::witnesses(part, whole)) {
      found.push_back(whole.tensors()[witness.tensor].name);
      CHECK(witness.digest == digest_of(found.back()));
    }
    return found;
  };
  const auto of_layer = names(part_of(whole, in_layer_1));
  CHECK(of_layer.size() == 4);
  CHECK(std::ranges::none_of(of_layer, [](const std::string& name) { return has(name, ".experts."); }));
  const auto of_experts = names(part_of(whole, [](const std::string& name) { return has(name, ".experts."); }));
  CHECK(of_experts.size() == 16);  // of 36
  CHECK(has(of_experts.front(), "layers.0."));
  CHECK(has(of_experts.back(), "layers.1."));
  Manifest converted = manifest_of(whole, [](const std::string& name) { return name == "lm_head.weight"; });
  converted.layouts[0].tensors[0].dtype = Dtype::f16;
  CHECK(names(packed(converted)).empty());
}

}  // namespace dspack::part_test
