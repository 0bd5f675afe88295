#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "format/cache/cached_repository.h"
#include "format/cache/weight_cache.h"
#include "reshard/run/repack.h"
#include "reshard/verbs/seal_cache.h"
#include "reshard/verbs/verify.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::seal_cache_test {

using namespace dspack;
using format::CachedRepository;
using format::CacheFolder;
using format::Checkpoint;
using format::Digest;
using format::posix_file_system;
using format::WeightCache;
using test::SmallCheckpoint;
using test::TempFolder;
using test::tree;

namespace {

Digest digest_of(std::span<const std::byte> bytes) {
  format::Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

/// The small checkpoint, and what repacking makes of it.
struct Lab {
  Lab() { original.write(source); }

  std::filesystem::path packed(const std::string& by) {
    const std::filesystem::path out = work.path() / ("by-" + by);
    const auto repository = open_repository(source.path().string(), {}, posix_file_system()).value();
    const reshard::RepackOptions options{.recipe = {.by = reshard::parse_grouping(by).value()}, .out = out};
    const auto outlook = prepare_repack(*repository, options, {}).value();
    format::SilentProgress silent;
    REQUIRE(repack(outlook, *repository, options, posix_file_system(), silent, {}).has_value());
    return out;
  }

  /// Keeps everything of the origin but `without`, in several runs.
  void fill(const std::filesystem::path& origin, std::string_view without = {}) {
    for (unsigned run = 0; run < 2; ++run) {
      const auto folder = CacheFolder::open(posix_file_system(), cache(), origin.string()).value();
      auto repository = open_repository(origin.string(), {}, posix_file_system()).value();
      const auto cached = CachedRepository::open(std::move(repository), *folder, {}).value();
      const Checkpoint catalogue = Checkpoint::open(*cached, 1, {}).value();
      const auto weights = WeightCache::open(*folder, catalogue, {}).value();
      for (const auto& [key, tensors] : catalogue.experts())
        if (key.expert.value % 2 == run) keep_expert(*cached, catalogue, *weights, key, without);
      for (uint32_t i = 0; i < catalogue.tensors().size(); ++i)
        if (i % 2 == run) keep_tensor(*cached, catalogue, *weights, i, without);
    }
  }

  static std::vector<std::byte> bytes_of(format::Repository& origin, const Checkpoint& catalogue, uint32_t tensor) {
    const format::TensorEntry& entry = catalogue.tensors()[tensor];
    std::vector<std::byte> bytes(entry.range.size());
    const auto file = origin.open(catalogue.files()[entry.file].path, {}).value();
    REQUIRE(file->read(entry.range.begin, bytes, {}).has_value());
    return bytes;
  }

  static void keep_expert(format::Repository& origin, const Checkpoint& catalogue, WeightCache& weights, ExpertKey key,
                          std::string_view without) {
    std::vector<std::vector<std::byte>> bytes;
    for (const uint32_t tensor : catalogue.expert(key)) {
      if (catalogue.tensors()[tensor].name == without) return;
      bytes.push_back(bytes_of(origin, catalogue, tensor));
    }
    const std::vector<std::span<const std::byte>> spans(bytes.begin(), bytes.end());
    CHECK(weights.keep_expert(key, spans).value());
    CHECK(weights.has_expert(key));
  }

  static void keep_tensor(format::Repository& origin, const Checkpoint& catalogue, WeightCache& weights,
                          uint32_t tensor, std::string_view without) {
    const format::TensorEntry& entry = catalogue.tensors()[tensor];
    if (entry.place.expert || entry.name == without) return;
    const std::vector<std::byte> bytes = bytes_of(origin, catalogue, tensor);
    if (rows_per_cache_block(catalogue, tensor) == 0) {
      REQUIRE(weights.write(tensor, 0, bytes).has_value());
      const std::pair<uint32_t, Digest> claim{tensor, digest_of(bytes)};
      REQUIRE(weights.claim({&claim, 1}).has_value());
    } else {
      CHECK(weights.keep_blocks(tensor, {{0, {.bytes = bytes, .digest = digest_of(bytes)}}}).value());
    }
  }

  [[nodiscard]] std::filesystem::path cache() const { return work.path() / "cache"; }
  [[nodiscard]] Result<reshard::SealOutcome> seal() const {
    format::SilentProgress silent;
    return reshard::seal_cache(cache(), {}, 2, posix_file_system(), silent, {});
  }

  TempFolder source;
  TempFolder work;
  SmallCheckpoint original;
};

/// What a manifest says of tensors, experts and whatever else has a digest, by name; not where they lie.
std::map<std::string, std::string> contents(const std::string& manifest_text) {
  const auto manifest = format::parse_manifest(manifest_text).value();
  std::map<std::string, std::string> found;
  for (const format::PackedFile& file : manifest.files) {
    const auto& layout = manifest.layouts[file.layout].tensors;
    for (size_t i = 0; i < layout.size(); ++i)
      found[file.path + " " + tensor_name(file, layout[i])] = to_hex(file.tensors[i]);
    for (const format::PackedExpert& expert : file.experts)
      found[fmt::format("{} {}", expert.key.layer.value, expert.key.expert.value)] = to_hex(expert.digest);
  }
  for (const format::CompanionFile& file : manifest.companions)
    found[file.path] = to_hex(file.sha256);
  for (const auto& shard : manifest.source)
    found[shard.path] = shard.sha256 ? to_hex(*shard.sha256) : "";
  return found;
}

/// All that it holds reads as the manifest says.
void check_verifies(const std::filesystem::path& folder) {
  const auto repository = open_repository(folder.string(), {}, posix_file_system()).value();
  const auto catalogue = Checkpoint::open(*repository, 1, {}).value();
  format::SilentProgress silent;
  CHECK(reshard::verify_digests(*repository, catalogue, 2, silent, {}).value().findings.empty());
}

/// In a cache files have the order of use, and not that of the source.
void check_seals(Lab& lab, std::initializer_list<const char*> origins) {
  const auto expected = tree(lab.packed("expert"));
  for (const std::string by : origins) {
    CAPTURE(by);
    std::filesystem::remove_all(lab.cache());
    lab.fill(by == "ordinary" ? lab.source.path() : lab.packed(by));
    const auto sealed = lab.seal();
    REQUIRE_MESSAGE(sealed.has_value(), (sealed ? "" : sealed.error().message));
    CHECK(sealed->missing_files == 0);
    const auto made = tree(lab.cache());
    for (const auto& [path, bytes] : expected) {
      CAPTURE(path);
      REQUIRE(made.contains(path));
      if (!path.starts_with("model/") && path != "manifest.json") CHECK(made.at(path) == bytes);
    }
    CHECK(made.size() == expected.size());
    CHECK(contents(made.at("manifest.json")) == contents(expected.at("manifest.json")));
    check_verifies(lab.cache());
    CHECK(lab.seal()->was_sealed);
  }
}

}  // namespace

TEST_CASE("seal: a complete cache holds what repacking by expert makes, whatever the origin's grouping") {
  Lab lab;
  check_seals(lab, {"expert", "layer", "shard:100kB", "ordinary"});
}

TEST_CASE("seal: so it is with experts in slices and names of other families") {
  Lab lab;
  lab.original.add(0, "model.layers.2.mlp.experts.gate_up_proj", "BF16", {3, 4, 2}, 2);
  lab.original.add(1, "model.layers.2.mlp.experts.down_proj", "BF16", {3, 2, 2}, 2);
  lab.original.add(2, "layers.3.ffn.experts.0.w1.weight", "U8", {4}, 1);
  lab.original.add(1, "mtp.0.ffn.experts.0.w1.weight", "U8", {4}, 1);
  lab.original.write(lab.source);
  check_seals(lab, {"layer", "shard:100kB", "ordinary"});
  CHECK_FALSE(tree(lab.cache()).contains("model.safetensors.index.json"));
}

TEST_CASE("seal: what is missing is counted and named, and nothing is sealed") {
  Lab lab;
  lab.fill(lab.source.path(), "model.layers.1.mlp.experts.2.up_proj.weight");
  const auto outcome = lab.seal();
  REQUIRE(outcome.has_value());
  CHECK(outcome->missing_files == 1);
  CHECK(outcome->missing_bytes == 3 * (64 * 64 + 4));
  CHECK(outcome->first == std::vector<std::string>{"model/layers/001/experts/002.safetensors"});
  CHECK_FALSE(std::filesystem::exists(lab.cache() / "manifest.json"));
}

TEST_CASE("seal: what has rotten since it was fetched is refused") {
  Lab lab;
  lab.fill(lab.source.path());
  const std::filesystem::path expert = lab.cache() / "model/layers/000/experts/001.safetensors";
  std::fstream file(expert, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(5000);
  file.put('\x55');
  file.put('\xaa');
  file.close();
  const auto outcome = lab.seal();
  REQUIRE_FALSE(outcome.has_value());
  CHECK(outcome.error().kind == ErrorKind::corrupt);
  CHECK(outcome.error().message.find("001.safetensors") != std::string::npos);
}

}  // namespace dspack::seal_cache_test
