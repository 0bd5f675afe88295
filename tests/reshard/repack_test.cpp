#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <utility>

#include "reshard/run/repack.h"
#include "reshard/verbs/verify.h"
#include "reshard/verbs/verify_source.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::repack_test {

using namespace dspack;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

/// Repacks `source` into `out` through `files`; the source itself is read from the real disk. `what`: a grouping, or
/// the JSON of a recipe.
Result<reshard::RepackOutcome> run(const TempFolder& source, const format::Path& out, format::FileSystem& files,
                                   unsigned jobs = 1, std::string_view what = "expert") {
  TRY_ASSIGN(const auto repository, open_repository(source.path().string(), {}, format::posix_file_system()));
  const bool json = what.starts_with('{');
  const reshard::Recipe recipe =
      json ? reshard::parse_recipe(what).value() : reshard::Recipe{.by = reshard::parse_grouping(what).value()};
  const reshard::RepackOptions options{.recipe = recipe, .out = out, .jobs = jobs};
  TRY_ASSIGN(const reshard::RepackOutlook outlook, reshard::prepare_repack(*repository, options, {}));
  format::SilentProgress progress;
  return reshard::repack(outlook, *repository, options, files, progress, {});
}

std::vector<std::string> findings(const format::Path& out) {
  const auto repository = open_repository(out.string(), {}, format::posix_file_system()).value();
  const auto catalogue = format::Checkpoint::open(*repository, 1, {});
  if (!catalogue) return {catalogue.error().message};
  format::SilentProgress progress;
  return reshard::verify_digests(*repository, *catalogue, 2, progress, {}).value().findings;
}

}  // namespace

TEST_CASE("repack: the result verifies, holds every tensor's bytes, and does not depend on the number of jobs") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint original;
  original.add(0, "model.layers.{layer}.mlp.experts.{expert}.w", "U8", {3}, 1);  // a name like any other
  original.write(source);
  for (const std::string by : {"expert", "expert:2", "layer", "shard:20000", "shard:5GB"}) {
    CAPTURE(by);
    const format::Path a = target.path() / by / "a";
    const format::Path b = target.path() / by / "b";
    REQUIRE(run(source, a, format::posix_file_system(), 1, by).value() == reshard::RepackOutcome::made);
    REQUIRE(run(source, b, format::posix_file_system(), 8, by).value() == reshard::RepackOutcome::made);
    CHECK(run(source, a, format::posix_file_system(), 1, by).value() == reshard::RepackOutcome::already_complete);
    const auto files = test::tree(a);
    CHECK(files == test::tree(b));
    CHECK(files.at("README.source.md") == "a card\n");
    CHECK(files.at("empty.txt").empty());
    CHECK(findings(a).empty());

    const auto repository = open_repository(a.string(), {}, format::posix_file_system()).value();
    const auto packed = format::Checkpoint::open(*repository, 1, {}).value();
    size_t tensors = 0;
    for (size_t shard = 0; shard < 3; ++shard) {
      for (const test::RawTensor& raw : original.shard(shard)) {
        const format::TensorEntry* entry = packed.find(raw.name);
        REQUIRE(entry != nullptr);
        CHECK(to_string(entry->dtype) == raw.dtype);
        CHECK(entry->shape == raw.shape);
        CHECK(files.at(packed.files()[entry->file].path).substr(entry->range.begin, entry->range.size()) == raw.bytes);
        ++tensors;
      }
    }
    CHECK(tensors == packed.tensors().size());
    // Its matrices, which lie in two shards of the source, and its scales in the region behind all matrices: in a file
    // of its own these are one.
    for (const auto& [key, unused] : packed.experts()) {
      const auto extents = packed.expert_extents(key);
      REQUIRE(extents.size() <= (by == "expert" ? 1 : 3));
      CHECK(extents.front().file == extents.back().file);
      CHECK(extents.front().range.begin % kPageBytes == 0);
    }
  }
}

TEST_CASE("repack: an expert's digest is the same in every grouping, as are those of the tensors") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  std::map<ExpertKey, format::Digest> experts;
  std::map<std::string, format::Digest> tensors;
  for (const std::string by : {"expert", "expert:2", "layer", "shard:20000"}) {
    CAPTURE(by);
    REQUIRE(run(source, target.path() / by, format::posix_file_system(), 1, by).has_value());
    const auto manifest = format::parse_manifest(target.read(by + "/manifest.json")).value();
    size_t seen = 0;
    for (const format::PackedFile& file : manifest.files) {
      for (const format::PackedExpert& expert : file.experts) {
        CHECK(experts.emplace(expert.key, expert.digest).first->second == expert.digest);
        ++seen;
      }
      const auto& layout = manifest.layouts[file.layout].tensors;
      for (size_t i = 0; i < layout.size(); ++i)
        CHECK(tensors.emplace(tensor_name(file, layout[i]), file.tensors[i]).first->second == file.tensors[i]);
    }
    CHECK(seen == 6);
    CHECK(manifest.coverage.layers == 2);
  }
  CHECK(experts.size() == 6);
}

TEST_CASE("repack: failing at any operation, the next run ends with the same bytes") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  for (const std::string by : {"expert", "layer", "shard:20000"}) {
    test::FaultyFileSystem counting(format::posix_file_system());
    REQUIRE(run(source, target.path() / by, counting, 1, by).has_value());
    const auto whole = test::tree(target.path() / by);
    REQUIRE(counting.operations() > 100);
    for (uint64_t operation = 0; operation < counting.operations(); ++operation) {
      CAPTURE(by);
      CAPTURE(operation);
      const format::Path out = target.path() / "cut";
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_from(operation);
      const auto cut = run(source, out, failing, 1, by);
      REQUIRE_FALSE(cut.has_value());
      const auto resumed = run(source, out, format::posix_file_system(), 1, by);
      REQUIRE_MESSAGE(resumed.has_value(), resumed.error().message);
      REQUIRE(test::tree(out) == whole);
      std::filesystem::remove_all(out);
    }
  }
}

TEST_CASE("repack: a recipe that converts and leaves out survives a failure at any operation as well") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint checkpoint;
  checkpoint.add(1, "model.layers.0.mlp.down_proj.weight", "BF16", {150, 130}, 2);
  uint32_t number = 0;
  for (size_t shard = 0; shard < 3; ++shard) {
    for (test::RawTensor& tensor : checkpoint.shard(shard)) {  // scales and values as weights have them, not any bits
      const auto scale = 0.001F * static_cast<float>(++number);
      if (tensor.name.ends_with("_scale_inv")) std::memcpy(tensor.bytes.data(), &scale, sizeof(scale));
      if (tensor.dtype != "BF16") continue;
      for (size_t i = 1; i < tensor.bytes.size(); i += 2)
        tensor.bytes[i] = static_cast<char>(tensor.bytes[i] & 0xbf);  // below 2
    }
  }
  checkpoint.write(source);
  source.write("config.json", R"({"num_hidden_layers":1,"num_nextn_predict_layers":1})");
  // Scales lie in other shards than their weights; figures of errors live in the journal alone until the end.
  const std::vector<std::string> recipes = {
      R"({"by":"layer","transform":["fp8-to-bf16","bf16-to-fp8"]})",
      R"({"by":"expert","drop_mtp":true,"exclude":{"experts":1},"transform":"fp8-to-f32 role=attention"})",
      R"({"by":"shard:20000","include":[{"layers":1,"role":"routed_expert"},{"role":"head"}]})"};
  for (size_t r = 0; r < recipes.size(); ++r) {
    test::FaultyFileSystem counting(format::posix_file_system());
    const format::Path out = target.path() / std::to_string(r);
    const auto made = run(source, out, counting, 1, recipes[r]);
    REQUIRE_MESSAGE(made.has_value(), made.error().message);
    const auto whole = test::tree(out);
    CHECK(findings(out).empty());
    REQUIRE(run(source, target.path() / "many", format::posix_file_system(), 8, recipes[r]).has_value());
    CHECK(test::tree(target.path() / "many") == whole);
    std::filesystem::remove_all(target.path() / "many");
    const auto manifest = format::parse_manifest(whole.at("manifest.json")).value();
    CHECK(manifest.rounding_errors.is_null() == (r == 2));
    CHECK(manifest.coverage.of.has_value() == (r != 0));
    CHECK(whole.contains("config.source.json") == (r != 2));
    for (uint64_t operation = 0; operation < counting.operations(); ++operation) {
      CAPTURE(recipes[r]);
      CAPTURE(operation);
      const format::Path cut = target.path() / "cut";
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_from(operation);
      REQUIRE_FALSE(run(source, cut, failing, 1, recipes[r]).has_value());
      const auto resumed = run(source, cut, format::posix_file_system(), 1, recipes[r]);
      REQUIRE_MESSAGE(resumed.has_value(), resumed.error().message);
      REQUIRE(test::tree(cut) == whole);
      std::filesystem::remove_all(cut);
    }
  }
}

TEST_CASE("repack: too little disk is refused before anything is created") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  test::FaultyFileSystem files(format::posix_file_system());
  files.set_free_bytes(1000);
  const auto refused = run(source, target.path() / "out", files);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(refused.error().message.find("1.00 kB are free") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(target.path() / "out"));
}

TEST_CASE("repack: too few free inodes are refused before anything is created") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  test::FaultyFileSystem files(format::posix_file_system());
  files.set_free_files(10);
  const auto refused = run(source, target.path() / "out", files);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::budget);
  CHECK(refused.error().message.find("10 can be") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(target.path() / "out"));

  // What is counted is enough, and not much more than is made.
  uint64_t fewest = 10;
  for (; !run(source, target.path() / "out", files).has_value(); ++fewest)
    files.set_free_files(fewest);
  uint64_t made = 1;
  for ([[maybe_unused]] const auto& entry : std::filesystem::recursive_directory_iterator(target.path() / "out"))
    ++made;
  CHECK(fewest >= made);
  CHECK(fewest <= 2 * made);
}

TEST_CASE("repack: a target that holds something else is left alone") {
  const TempFolder source;
  const TempFolder target;
  const TempFolder other;
  SmallCheckpoint().write(source);
  target.write("precious.txt", "x");
  CHECK(run(source, target.path(), format::posix_file_system()).error().kind == ErrorKind::conflict);
  CHECK(test::tree(target.path()).size() == 1);

  SmallCheckpoint changed;
  changed.add(0, "x", "U8", {1}, 1);
  changed.write(other);
  REQUIRE(run(source, target.path() / "done", format::posix_file_system()).has_value());
  const auto again = run(other, target.path() / "done", format::posix_file_system());
  CHECK(again.error().kind == ErrorKind::conflict);
  CHECK(findings(target.path() / "done").empty());
}

TEST_CASE("repack: a .reshard that no run of ours has made opens no folder to it") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path out = target.path() / "out";
  const auto refused = [&](const std::map<std::string, std::string>& there) {
    std::filesystem::remove_all(out);
    for (const auto& [name, bytes] : there)
      target.write("out/" + name, bytes);
    const auto before = test::tree(out);
    const auto made = run(source, out, format::posix_file_system());
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().kind == ErrorKind::conflict);
    CHECK(made.error().message.find(out.string()) != std::string::npos);
    CHECK(test::tree(out) == before);
  };
  refused({{"config.json", "mine"}, {".reshard/lock", ""}});
  refused({{"config.json", "mine"}, {".reshard/journal", ""}});
  refused({{"config.json", "mine"}, {".reshard/journal", "my journal"}});
  refused({{".reshard/part/model.safetensors", "mine"}});
  refused({{".reshard/notes", "mine"}});
  refused({{"config.json", "mine"}, {".reshard", "a file"}});
  // What a run leaves that was killed when it had just begun.
  std::filesystem::remove_all(out);
  target.write("out/.reshard/lock", "");
  target.write("out/.reshard/journal", "0123456789abcdef {\"jour");
  CHECK(run(source, out, format::posix_file_system()).has_value());
}

TEST_CASE("repack: what others have put into the work folder outlives the run") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path out = target.path() / "out";
  test::FaultyFileSystem failing(format::posix_file_system());
  failing.fail_from(100);
  REQUIRE_FALSE(run(source, out, failing).has_value());
  REQUIRE(std::filesystem::exists(out / ".reshard" / "journal"));
  target.write("out/.reshard/precious/notes", "mine");
  REQUIRE(run(source, out, format::posix_file_system()).has_value());
  CHECK(findings(out).empty());
  CHECK(target.read("out/.reshard/precious/notes") == "mine");
  CHECK(format::posix_file_system().list(out / ".reshard").value() == std::vector<std::string>{"precious"});
  CHECK(run(source, out, format::posix_file_system()).value() == reshard::RepackOutcome::already_complete);
  CHECK(target.read("out/.reshard/precious/notes") == "mine");
}

TEST_CASE("repack: a source that changed since the run was begun is not mixed in") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  test::FaultyFileSystem failing(format::posix_file_system());
  failing.fail_from(100);
  REQUIRE_FALSE(run(source, target.path() / "out", failing).has_value());
  REQUIRE(std::filesystem::exists(target.path() / "out" / ".reshard" / "journal"));
  std::string shard = source.read(SmallCheckpoint::shard_name(0));
  shard.back() ^= 1;
  source.write(SmallCheckpoint::shard_name(0), shard);
  // Both writes may fall into one tick of the file system's clock; a source that is replaced does not.
  const format::Path changed = source.path() / SmallCheckpoint::shard_name(0);
  std::filesystem::last_write_time(changed, std::filesystem::last_write_time(changed) + std::chrono::seconds(1));
  const auto resumed = run(source, target.path() / "out", format::posix_file_system());
  REQUIRE_FALSE(resumed.has_value());
  CHECK(resumed.error().kind == ErrorKind::conflict);
  CHECK(resumed.error().message.find("source has changed") != std::string::npos);
}

TEST_CASE("verify: every flipped byte is found and its file named, in every grouping") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  for (const std::string by : {"expert", "expert:2", "layer", "shard:20000"}) {
    const format::Path out = target.path() / by;
    REQUIRE(run(source, out, format::posix_file_system(), 1, by).has_value());
    const auto files = test::tree(out);
    for (const auto& [path, bytes] : files) {
      if (bytes.empty()) continue;
      CAPTURE(path);
      for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
        std::string broken = bytes;
        broken[at] ^= 4;
        target.write(by + "/" + path, broken);
        const std::vector<std::string> found = findings(out);
        REQUIRE_FALSE(found.empty());
        CHECK_MESSAGE(found[0].find(path) != std::string::npos, found[0]);
      }
      target.write(by + "/" + path, bytes + "x");
      CHECK_FALSE(findings(out).empty());
      target.write(by + "/" + path, bytes);
    }
    CHECK(findings(out).empty());
    const auto weights = files.lower_bound("model/");
    std::filesystem::remove(out / weights->first);
    CHECK(findings(out).at(0).find(weights->first) != std::string::npos);
  }
}

TEST_CASE("verify: a manifest whose row blocks or expert digests do not fit is found out") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  for (const std::string by : {"expert", "expert:2", "layer", "shard:20000"}) {
    CAPTURE(by);
    const format::Path out = target.path() / by;
    REQUIRE(run(source, out, format::posix_file_system(), 1, by).has_value());
    format::Manifest manifest = format::parse_manifest(target.read(by + "/manifest.json")).value();
    const auto expect = [&](format::Digest& digest, const std::string& message) {
      const format::Digest before = std::exchange(digest, {});
      target.write(by + "/manifest.json", format::write_manifest(manifest));
      const std::vector<std::string> found = findings(out);
      REQUIRE(found.size() == 1);
      CHECK_MESSAGE(found[0].find(message) != std::string::npos, found[0]);
      digest = before;
    };
    size_t checked = 0;
    for (format::PackedFile& file : manifest.files) {
      for (format::RowBlocks& blocks : file.row_blocks) {
        expect(blocks.digests[0], "row blocks");
        ++checked;
      }
      for (format::PackedExpert& expert : file.experts) {
        expect(expert.digest, "layer " + std::to_string(expert.key.layer.value) + ", expert " +
                                  std::to_string(expert.key.expert.value) + ": the expert's digest");
        ++checked;
      }
    }
    CHECK(checked == 1 + 6);
  }
}

TEST_CASE("repack: companions that would share a name, and an output inside the source, are refused") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  CHECK(run(source, source.path() / "packed", format::posix_file_system()).error().message.find("inside the source") !=
        std::string::npos);
  source.write("README.source.md", "another card");
  const auto clash = run(source, target.path() / "out", format::posix_file_system());
  REQUIRE_FALSE(clash.has_value());
  CHECK(clash.error().message.find("README.source.md") != std::string::npos);
  CHECK(test::tree(target.path()).empty());
}

TEST_CASE("verify: against a source, the tensor and the byte that differ are named") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  REQUIRE(run(source, target.path() / "out", format::posix_file_system()).has_value());
  const auto compare = [&] {
    const auto packed = open_repository((target.path() / "out").string(), {}, format::posix_file_system()).value();
    const auto original = open_repository(source.path().string(), {}, format::posix_file_system()).value();
    const auto catalogue = format::Checkpoint::open(*packed, 1, {}).value();
    const auto checkpoint = format::Checkpoint::open(*original, 1, {}).value();
    format::SilentProgress progress;
    return reshard::verify_against_source(*packed, catalogue, *original, checkpoint, 2, progress, {}).value().findings;
  };
  CHECK(compare().empty());
  std::string shard = source.read(SmallCheckpoint::shard_name(1));
  shard.back() ^= 1;
  source.write(SmallCheckpoint::shard_name(1), shard);
  const auto found = compare();
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("model.layers.1.mlp.experts.2.down_proj.weight") != std::string::npos);
  CHECK(found[0].find("byte 4095") != std::string::npos);
}

}  // namespace dspack::repack_test
