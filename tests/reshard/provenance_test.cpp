#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "reshard/run/repack.h"
#include "reshard/verbs/diff.h"
#include "reshard/verbs/rebuild.h"
#include "reshard/verbs/unpack.h"
#include "reshard/verbs/verify_source.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::provenance_test {

using namespace dspack;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

/// A place and its catalogue.
struct Place {
  std::unique_ptr<format::Repository> repository;
  format::Checkpoint checkpoint;
};

Place open(const format::Path& folder) {
  auto repository = open_repository(folder.string(), {}, format::posix_file_system()).value();
  auto checkpoint = format::Checkpoint::open(*repository, 1, {}).value();
  return {std::move(repository), std::move(checkpoint)};
}

void repack(const TempFolder& source, const format::Path& out) {
  const auto repository = open_repository(source.path().string(), {}, format::posix_file_system()).value();
  const reshard::RepackOptions options{.recipe = reshard::Recipe{}, .out = out, .jobs = 2};
  const reshard::RepackOutlook outlook = reshard::prepare_repack(*repository, options, {}).value();
  format::SilentProgress progress;
  REQUIRE(reshard::repack(outlook, *repository, options, format::posix_file_system(), progress, {}).has_value());
}

Result<reshard::UnpackOutcome> unpack(const format::Path& packed, const reshard::UnpackOptions& options,
                                      format::FileSystem& files) {
  const Place place = open(packed);
  TRY_ASSIGN(const reshard::UnpackPlan plan, reshard::prepare_unpack(*place.repository, place.checkpoint, options, {}));
  format::SilentProgress progress;
  return reshard::unpack(plan, *place.repository, place.checkpoint, options, files, progress, {});
}

reshard::DiffReport compare(const format::Path& a, const format::Path& b, unsigned jobs = 2) {
  const Place x = open(a);
  const Place y = open(b);
  format::SilentProgress progress;
  return reshard::diff({*x.repository, x.checkpoint}, {*y.repository, y.checkpoint}, {.companions = true, .jobs = jobs},
                       progress, {})
      .value();
}

}  // namespace

TEST_CASE("checksum list: the lines of sha256sum, and nothing else") {
  const std::string hex(64, 'a');
  const std::string other(64, 'B');
  const auto list = reshard::parse_checksum_list(
      hex + "  ./a b.safetensors\r\n\n" + other + " *sub/c.safetensors\n" + hex + "  config.json", "list");
  REQUIRE(list.has_value());
  CHECK(list->files.size() == 3);
  CHECK(to_hex(list->files.at("a b.safetensors").sha256) == hex);
  CHECK(to_hex(list->files.at("sub/c.safetensors").sha256) == std::string(64, 'b'));
  CHECK(list->weights == std::vector<std::string>{"a b.safetensors", "sub/c.safetensors"});
  CHECK(reshard::parse_checksum_list("", "list")->files.empty());
  const std::vector<std::string> broken = {"x",
                                           "  path",
                                           hex,
                                           hex + "  ",
                                           hex + "  ././",
                                           hex + " path",
                                           hex.substr(1) + "  path",
                                           "SHA256 (a) = " + hex,
                                           hex + "  a\n" + other + "  a"};
  for (const std::string& wrong : broken) {
    CAPTURE(wrong);
    const auto refused = reshard::parse_checksum_list(wrong, "list");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message.find("list: line ") != std::string::npos);
  }
}

TEST_CASE("shard plan: natural order, the size obeyed, every tensor once and aligned") {
  const TempFolder source;
  SmallCheckpoint checkpoint;
  checkpoint.add(2, "vision.patch", "U8", {3}, 1);
  checkpoint.add(1, "model.layers.1.strange", "U8", {5}, 1);
  checkpoint.write(source);
  const Place place = open(source.path());
  const auto& tensors = place.checkpoint.tensors();
  const std::vector<uint32_t> order = reshard::natural_order(place.checkpoint);
  const auto position = [&](std::string_view name) {
    return std::find_if(order.begin(), order.end(), [&](uint32_t i) { return tensors[i].name == name; }) -
           order.begin();
  };
  const std::vector<std::string_view> expected = {"model.embed_tokens.weight",
                                                  "model.layers.0.self_attn.q_a_proj.weight",
                                                  "model.layers.0.mlp.experts.0.up_proj.weight",
                                                  "model.layers.0.mlp.experts.2.down_proj.weight",
                                                  "model.layers.1.strange",
                                                  "model.layers.1.mlp.experts.0.gate_proj.weight",
                                                  "lm_head.weight",
                                                  "model.norm.weight",
                                                  "vision.patch"};
  for (size_t i = 0; i + 1 < expected.size(); ++i)
    CHECK(position(expected[i]) < position(expected[i + 1]));

  for (const uint64_t size : {1ULL, 300ULL, 4096ULL, 5000ULL, 20000ULL, 1ULL << 40}) {
    CAPTURE(size);
    std::vector<uint32_t> seen;
    const auto shards = reshard::plan_shards(place.checkpoint, size);
    for (const reshard::ShardImage& shard : shards) {
      const uint64_t payload = shard.size_bytes - shard.header.size();
      CHECK((payload <= size || shard.tensors.size() == 1));
      const auto header = format::parse_header(std::string_view(shard.header).substr(8), shard.size_bytes);
      REQUIRE_MESSAGE(header.has_value(), header.error().message);
      for (const format::TensorInfo& tensor : header->tensors)
        CHECK(tensor.data.begin * 8 % bits_of(tensor.dtype) == 0);
      seen.insert(seen.end(), shard.tensors.begin(), shard.tensors.end());
    }
    std::sort(seen.begin(), seen.end());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    CHECK(seen.size() == tensors.size());
    CHECK((shards.size() == 1) == (shards[0].path == "model.safetensors"));
  }
}

TEST_CASE("unpack: failing at any operation, the next run ends with the original shards") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path packed = target.path() / "packed";
  repack(source, packed);
  const format::Path out = target.path() / "out";
  const reshard::UnpackOptions options{.out = out, .exact = true, .jobs = 1};
  test::FaultyFileSystem counting(format::posix_file_system());
  REQUIRE(unpack(packed, options, counting).value() == reshard::UnpackOutcome::made);
  CHECK(test::tree(out) == test::tree(source.path()));
  CHECK(unpack(packed, options, counting).value() == reshard::UnpackOutcome::already_there);
  std::filesystem::remove_all(out);
  REQUIRE(counting.operations() > 50);
  for (uint64_t operation = 0; operation < counting.operations(); ++operation) {
    CAPTURE(operation);
    test::FaultyFileSystem failing(format::posix_file_system());
    failing.fail_from(operation);
    if (unpack(packed, options, failing).has_value()) break;  // the second, idle run's operations are counted too
    const auto resumed = unpack(packed, options, format::posix_file_system());
    REQUIRE_MESSAGE(resumed.has_value(), resumed.error().message);
    REQUIRE(test::tree(out) == test::tree(source.path()));
    std::filesystem::remove_all(out);
  }
}

TEST_CASE("unpack: an error at any operation leaves nothing under final names, and the next run ends well") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path packed = target.path() / "packed";
  repack(source, packed);
  const format::Path out = target.path() / "out";
  for (const bool exact : {true, false}) {
    const reshard::UnpackOptions options{.out = out, .exact = exact, .shard_bytes = 20'000, .jobs = 1};
    test::FaultyFileSystem counting(format::posix_file_system());
    REQUIRE(unpack(packed, options, counting).value() == reshard::UnpackOutcome::made);
    const auto whole = test::tree(out);
    std::filesystem::remove_all(out);
    uint64_t failures = 0;
    for (uint64_t operation = 0; operation < counting.operations(); ++operation) {
      CAPTURE(operation);
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_with({.from = operation, .until = operation + 1});
      if (!unpack(packed, options, failing).has_value()) {
        ++failures;
        const auto left =
            std::filesystem::exists(out) ? format::posix_file_system().list(out).value() : std::vector<std::string>();
        const bool none = left.empty() || left == std::vector<std::string>{".reshard"};
        // Or all have their names, and only the work folder is still to go.
        CHECK((none || std::ranges::all_of(
                           whole, [&](const auto& file) { return std::filesystem::exists(out / file.first); })));
      }
      REQUIRE(unpack(packed, options, format::posix_file_system()));
      REQUIRE(test::tree(out) == whole);
      std::filesystem::remove_all(out);
    }
    CHECK(failures > 50);
  }
}

TEST_CASE("unpack: a .reshard that no unpacking has made opens no folder to it") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path packed = target.path() / "packed";
  repack(source, packed);
  const format::Path out = target.path() / "mine";
  target.write("mine/config.json", "mine");
  target.write("mine/.reshard/part/precious", "x");
  const auto before = test::tree(out);
  for (const bool exact : {true, false}) {
    const auto refused = unpack(packed, {.out = out, .exact = exact}, format::posix_file_system());
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().kind == ErrorKind::conflict);
    CHECK(test::tree(out) == before);
  }
}

TEST_CASE("unpack: too little disk, a foreign folder and other options are refused, and nothing is harmed") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path packed = target.path() / "packed";
  repack(source, packed);
  test::FaultyFileSystem files(format::posix_file_system());
  files.set_free_bytes(1000);
  const auto full = unpack(packed, {.out = target.path() / "out", .exact = true}, files);
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error().kind == ErrorKind::budget);
  CHECK(full.error().message.find("1.00 kB are free") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(target.path() / "out"));

  target.write("mine/precious.txt", "x");
  CHECK(unpack(packed, {.out = target.path() / "mine", .exact = true}, format::posix_file_system()).error().kind ==
        ErrorKind::conflict);
  CHECK(test::tree(target.path() / "mine").size() == 1);

  test::FaultyFileSystem failing(format::posix_file_system());
  failing.fail_from(60);
  REQUIRE_FALSE(unpack(packed, {.out = target.path() / "cut", .exact = true, .jobs = 1}, failing).has_value());
  REQUIRE(std::filesystem::exists(target.path() / "cut" / ".reshard" / "unpack"));
  const auto other = unpack(packed, {.out = target.path() / "cut"}, format::posix_file_system());
  REQUIRE_FALSE(other.has_value());
  CHECK(other.error().message.find("other options") != std::string::npos);
}

TEST_CASE("unpack: a manifest by which two files would have one name is refused before anything is written") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path packed = target.path() / "packed";
  repack(source, packed);
  Place place = open(packed);
  format::Manifest manifest = *place.checkpoint.manifest();
  manifest.companions.push_back({"model.safetensors", 1, format::sha256("x")});
  std::ofstream(packed / format::kManifestPath) << write_manifest(manifest);
  const format::Path out = target.path() / "out";
  const auto refused = unpack(packed, {.out = out}, format::posix_file_system());
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "model.safetensors: two files of the source would have this name");
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("diff: every kind of difference, and payload read only where digests do not settle it") {
  const TempFolder source;
  const TempFolder changed;
  const TempFolder target;
  SmallCheckpoint original;
  original.write(source);
  SmallCheckpoint other;
  other.add(0, "model.layers.1.new", "U8", {1}, 1);
  other.shard(1).back().bytes[7] ^= 1;
  const std::string flipped = other.shard(1).back().name;
  test::RawTensor& reshaped = other.shard(2).back();
  REQUIRE(reshaped.name == "model.layers.1.eh_proj.weight");
  reshaped.shape = {16, 8};
  const std::string removed = other.shard(0).front().name;
  other.shard(0).erase(other.shard(0).begin());
  other.write(changed);
  changed.write("config.json", "{}");
  changed.write("LICENSE", "x");
  repack(source, target.path() / "a");
  repack(changed, target.path() / "b");

  const uint64_t payload = open(source.path()).checkpoint.payload_bytes();
  for (const auto& [a, b] :
       {std::pair(source.path(), changed.path()), std::pair(target.path() / "a", changed.path()),
        std::pair(source.path(), target.path() / "b"), std::pair(target.path() / "a", target.path() / "b")}) {
    const reshard::DiffReport report = compare(a, b);
    REQUIRE(report.tensors.size() == 4);
    CHECK(report.tensors[0].kind == reshard::DifferenceKind::only_in_a);
    CHECK(report.tensors[0].name == removed);
    CHECK(report.tensors[1].name == "model.layers.1.new");
    CHECK(report.tensors[2].kind == reshard::DifferenceKind::type);
    CHECK(report.tensors[2].detail == "BF16 [8,16] in A, BF16 [16,8] in B");
    CHECK(report.tensors[3].name == flipped);
    REQUIRE(report.companions.size() == 2);
    CHECK(report.companions[0].name == "LICENSE");
    CHECK(report.companions[0].kind == reshard::DifferenceKind::only_in_b);
    CHECK(report.companions[1].name == "config.json");
    CHECK(report.equal_companions == 2);  // README.md and empty.txt
    CHECK(reshard::diff_json(report).find(R"({"kind":"only_in_b","tensor":"model.layers.1.new"})") !=
          std::string::npos);
  }
  CHECK(compare(target.path() / "a", target.path() / "b").bytes_read == 0);
  CHECK(compare(source.path(), target.path() / "a").equal());
  const uint64_t half = compare(source.path(), target.path() / "a").bytes_read;
  CHECK(half >= payload);
  CHECK(half < payload + 100);
  CHECK(compare(source.path(), source.path(), 8).bytes_read >= 2 * payload);
}

}  // namespace dspack::provenance_test
