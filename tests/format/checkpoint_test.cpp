#include <doctest/doctest.h>

#include "format/checkpoint.h"
#include "format/checkpoint_builder.h"
#include "format/json.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::checkpoint_test {

using namespace dspack;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

Result<format::Checkpoint> open(const TempFolder& folder) {
  TRY_ASSIGN(const auto repository, open_repository(folder.path().string(), {}, format::posix_file_system()));
  return format::Checkpoint::open(*repository, 2, {});
}

std::string error_of(const TempFolder& folder) {
  const auto opened = open(folder);
  return opened ? "no error" : opened.error().message;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("checkpoint: an ordinary folder as a catalogue of extents") {
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  const auto opened = open(folder);
  REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
  CHECK(opened->files().size() == 3);
  CHECK(opened->experts().size() == 6);
  const auto tensors = opened->expert({LayerId(1), ExpertId(2)});
  REQUIRE(tensors.size() == 6);
  CHECK(opened->tensors()[tensors[0]].name == "model.layers.1.mlp.experts.2.down_proj.weight");
  CHECK(opened->expert({LayerId(1), ExpertId(3)}).empty());
  const format::TensorEntry* embed = opened->find("model.embed_tokens.weight");
  REQUIRE(embed != nullptr);
  const std::string shard = folder.read(opened->files()[embed->file].path);
  SmallCheckpoint original;
  for (const test::RawTensor& raw : original.shard(0)) {
    if (raw.name == embed->name) CHECK(shard.substr(embed->range.begin, embed->range.size()) == raw.bytes);
  }
  CHECK(opened->find("nothing") == nullptr);
}

TEST_CASE("checkpoint: an expert is as few extents as its tensors leave") {
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  const format::Checkpoint opened = open(folder).value();
  // gate and up lie together in the first shard, down in the second, the three scales together in the third.
  const auto extents = opened.expert_extents({LayerId(0), ExpertId(1)});
  REQUIRE(extents.size() == 3);
  CHECK(extents[0].range.size() == 2 * 64 * 64);
  CHECK(extents[1].range.size() == 64 * 64);
  CHECK(extents[2].range.size() == 3 * 4);
  CHECK(opened.expert_extents({LayerId(9), ExpertId(0)}).empty());
}

TEST_CASE("checkpoint: a single model.safetensors needs no index") {
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  folder.write("model.safetensors", test::safetensors_file(checkpoint.shard(2)));
  CHECK(open(folder).has_value());
}

TEST_CASE("checkpoint: contradictions between index and shards are refused") {
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  checkpoint.write(folder);
  const std::string index = folder.read("model.safetensors.index.json");

  SUBCASE("a shard is missing") {
    std::filesystem::remove(folder.path() / SmallCheckpoint::shard_name(1));
    CHECK(mentions(error_of(folder), "names a shard that is missing"));
    CHECK(mentions(error_of(folder), SmallCheckpoint::shard_name(1)));
  }
  SUBCASE("a path escapes") {
    folder.write("model.safetensors.index.json", R"({"weight_map":{"a":"../x.safetensors"}})");
    CHECK(mentions(error_of(folder), "\"..\""));
  }
  SUBCASE("a tensor is not where the index says") {
    auto json = *format::parse_json(index, format::kManifestDocument);
    json["weight_map"]["ghost.weight"] = SmallCheckpoint::shard_name(0);
    folder.write("model.safetensors.index.json", json.dump());
    CHECK(mentions(error_of(folder), "\"ghost.weight\""));
  }
  SUBCASE("of a tensor in two shards the index chooses one") {
    test::RawTensor stale = checkpoint.shard(0).front();
    stale.bytes.assign(stale.bytes.size(), 'x');
    checkpoint.shard(1).push_back(stale);
    folder.write(SmallCheckpoint::shard_name(1), test::safetensors_file(checkpoint.shard(1)));
    const auto opened = open(folder);
    REQUIRE_MESSAGE(opened.has_value(), opened.error().message);
    REQUIRE(opened->warnings().size() == 1);
    CHECK(mentions(opened->warnings()[0], "1 tensor of the shards"));
    CHECK(opened->files()[opened->find(stale.name)->file].path == SmallCheckpoint::shard_name(0));
  }
  SUBCASE("a tensor in the shard only is not read") {
    checkpoint.add(2, "extra.weight", "F32", {1}, 4);
    checkpoint.add(2, "further.weight", "F32", {1}, 4);
    folder.write(SmallCheckpoint::shard_name(2), test::safetensors_file(checkpoint.shard(2)));
    const auto opened = open(folder);
    REQUIRE(opened.has_value());
    REQUIRE(opened->warnings().size() == 1);
    CHECK(mentions(opened->warnings()[0], "2 tensors of the shards, "));
    CHECK(opened->find("extra.weight") == nullptr);
  }
  SUBCASE("a truncated shard") {
    const std::string shard = folder.read(SmallCheckpoint::shard_name(0));
    folder.write(SmallCheckpoint::shard_name(0), shard.substr(0, shard.size() - 1));
    CHECK(mentions(error_of(folder), "truncated"));
    CHECK(mentions(error_of(folder), SmallCheckpoint::shard_name(0)));
  }
  SUBCASE("an index that is none") {
    for (const char* text :
         {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})"}) {
      folder.write("model.safetensors.index.json", text);
      CHECK(mentions(error_of(folder), "model.safetensors.index.json"));
    }
  }
}

TEST_CASE("checkpoint: a folder that holds none says what was looked for") {
  const TempFolder folder;
  CHECK(mentions(error_of(folder), "not a checkpoint"));
  folder.write(".reshard/journal", "x");
  CHECK(mentions(error_of(folder), "unfinished"));
  folder.write("manifest.json", "{}");
  CHECK(mentions(error_of(folder), "manifest.json"));
}

TEST_CASE("checkpoint: what stands in the place of a shard or an index is named, with the remedy") {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') + "\nsize 9\n";
  struct Foreign {
    std::string text;
    std::string_view name;
  };
  const std::vector<Foreign> cases = {{pointer, "pointer of Git LFS"},
                                      {"<!DOCTYPE HTML><html>" + std::string(400, ' '), "HTML page"},
                                      {" \n<html lang=en>" + std::string(400, ' '), "HTML page"},
                                      {"GGUF" + std::string(400, '\0'), "GGUF"},
                                      {"PK\x03\x04" + std::string(400, '\0'), "pickle"}};
  for (const Foreign& foreign : cases) {
    CAPTURE(foreign.name);
    const TempFolder folder;
    SmallCheckpoint().write(folder);
    folder.write(SmallCheckpoint::shard_name(1), foreign.text);
    CHECK(mentions(error_of(folder), foreign.name));
    CHECK(mentions(error_of(folder), SmallCheckpoint::shard_name(1)));
    folder.write(SmallCheckpoint::shard_name(1), "");
    folder.write("model.safetensors.index.json", foreign.text);
    CHECK(mentions(error_of(folder), foreign.name));
  }
  const TempFolder folder;
  SmallCheckpoint().write(folder);
  folder.write(SmallCheckpoint::shard_name(1), std::string(4096, '\0'));
  CHECK_FALSE(mentions(error_of(folder), "aria2"));
  folder.write(SmallCheckpoint::shard_name(1) + ".aria2", "x");
  CHECK(mentions(error_of(folder), "unfinished download of aria2"));
  for (const auto& [file, name] : {std::pair{"adapter_config.json", "adapter"}, {"pytorch_model.bin", "pickles"}}) {
    const TempFolder other;
    other.write(file, "{}");
    CHECK(mentions(error_of(other), name));
  }
}

TEST_CASE("checkpoint: what one of its layers or experts lacks is said") {
  const auto losses = [](const std::string& lost) {
    const TempFolder folder;
    SmallCheckpoint checkpoint;
    for (uint32_t shard = 0; shard < 3; ++shard) {
      std::erase_if(checkpoint.shard(shard), [&](const test::RawTensor& raw) {
        return !lost.empty() && raw.name.find(lost) != std::string::npos;
      });
    }
    checkpoint.write(folder);
    return open(folder).value().warnings();
  };
  CHECK(losses("").empty());
  REQUIRE(losses("layers.1.mlp.experts.2.up_proj.weight_scale_inv").size() == 1);
  CHECK(
      mentions(losses("layers.1.mlp.experts.2.up_proj.weight_scale_inv")[0],
               "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv is missing, which the other experts of layer 1"));
  REQUIRE(losses("layers.1.mlp.experts.1.").size() == 1);
  CHECK(mentions(losses("layers.1.mlp.experts.1.")[0], "layer 1 has no expert 1"));
  const TempFolder folder;
  SmallCheckpoint checkpoint;
  checkpoint.add(0, "model.layers.4.norm", "F32", {1}, 4);
  checkpoint.write(folder);
  CHECK(mentions(open(folder).value().warnings().at(0), "layer 2 is missing between others"));
}

TEST_CASE("checkpoint: experts of no known family are described by the pattern of their names") {
  const auto described = [](const std::vector<std::string>& names) {
    std::vector<format::TensorEntry> tensors;
    for (const std::string& name : names) {
      format::TensorEntry& tensor = tensors.emplace_back();
      tensor.name = name;
      tensor.place.role = format::Role::other;
    }
    return format::unknown_experts(tensors);
  };
  CHECK(described({"a.0.b", "head"}) == std::nullopt);
  CHECK(
      described({"a.0.experts.w1"}) ==
      "1 tensor speaks of experts and has a name of no known family: \"a.N.experts.w1\" (such as \"a.0.experts.w1\")");
  CHECK(
      described({"a.0.experts.w1", "a.12.experts.w1", "expert", "x.0a.expert."}) ==
      "4 tensors speak of experts and have names of no known family: \"a.N.experts.w1\" (such as \"a.0.experts.w1\"), "
      "\"expert\", \"x.0a.expert.\"");
}

}  // namespace dspack::checkpoint_test
