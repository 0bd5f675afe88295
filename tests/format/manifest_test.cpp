#include <doctest/doctest.h>

#include <fstream>

#include "format/checkpoint.h"
#include "format/json.h"
#include "tests/support/temp_folder.h"

namespace dspack::manifest_test {

using namespace dspack;
using namespace dspack::format;
using format::Json;
using format::Manifest;

namespace {

/// Two bytes a tensor, so `payload` says how many there are.
format::PackedFile several_experts(uint64_t layout, std::string path, std::optional<LayerId> layer, uint64_t payload) {
  format::PackedFile file;
  file.path = std::move(path);
  file.part = layer ? "expert" : "shard";
  file.layer = layer;
  file.layout = layout;
  file.data_start = 4096;
  file.size_bytes = 4096 + payload;
  for (uint64_t tensor = 0; tensor < payload / 2; ++tensor)
    file.tensors.push_back(format::sha256(std::to_string(tensor)));
  return file;
}

/// One file of each kind: an embedding, one expert, two of a layer, a shard with literal names.
Manifest sample() {
  Manifest manifest;
  manifest.program = "dspack test";
  manifest.recipe = {{"by", "expert"}};
  manifest.plan = std::string(64, 'a');
  manifest.origin = {"hub", "org/name", "main"};
  manifest.coverage = {{.layers = 1, .experts = 1, .tensors = 3, .payload_bytes = 24}};
  manifest.source = {{"model.safetensors", 100, format::sha256("source")}};
  manifest.layouts = {{{{"model.embed_tokens.weight", Dtype::bf16, {4, 2}, {0, 16}}}},
                      {{{"model.layers.{layer}.mlp.experts.{expert}.w", Dtype::f8_e4m3, {2, 2}, {0, 4}},
                        {"model.layers.{layer}.mlp.experts.{expert}.s", Dtype::f32, {1}, {4, 8}}}},
                      {{{"model.layers.{layer}.mlp.experts.{expert[0]}.w", Dtype::u8, {2}, {0, 2}},
                        {"model.layers.{layer}.mlp.experts.{expert[1]}.w", Dtype::u8, {2}, {2, 4}}}},
                      {{{"model.layers.5.mlp.experts.0.w", Dtype::u8, {2}, {0, 2}},
                        {"model.layers.6.mlp.experts.9.w", Dtype::u8, {2}, {2, 4}},
                        {"odd.{layer}.{expert}", Dtype::u8, {2}, {4, 6}}}}};
  format::PackedFile embed;
  embed.path = "model/embed.safetensors";
  embed.part = "embed";
  embed.data_start = 4096;
  embed.size_bytes = 4112;
  embed.tensors = {format::sha256("e")};
  embed.row_blocks = {{0, 3, {format::sha256("1"), format::sha256("2")}}};
  format::PackedFile expert;
  expert.path = "model/layers/003/experts/007.safetensors";
  expert.part = "expert";
  expert.layer = LayerId(3);
  expert.experts = {{{LayerId(3), ExpertId(7)}, format::sha256("x")}};
  expert.layout = 1;
  expert.data_start = 4096;
  expert.size_bytes = 4104;
  expert.tensors = {format::sha256("w"), format::sha256("s")};
  manifest.files = {embed, expert, several_experts(2, "model/layers/004/experts.safetensors", LayerId(4), 4),
                    several_experts(3, "model/model-00001-of-00001.safetensors", {}, 6)};
  manifest.files[2].experts = {{{LayerId(4), ExpertId(0)}, format::sha256("40")},
                               {{LayerId(4), ExpertId(2)}, format::sha256("42")}};
  manifest.files[3].experts = {{{LayerId(5), ExpertId(0)}, format::sha256("50")},
                               {{LayerId(6), ExpertId(9)}, format::sha256("69")}};
  manifest.companions = {{"config.json", 2, format::sha256("{}")}};
  return manifest;
}

/// What opening a repository with this manifest says: nothing else of it is looked at.
std::string opened(const std::string& manifest) {
  const test::TempFolder folder;
  folder.write("manifest.json", manifest);
  const auto repository = open_repository(folder.path().string(), {}, format::posix_file_system()).value();
  const auto checkpoint = format::Checkpoint::open(*repository, 1, {});
  return checkpoint ? "opened" : checkpoint.error().message;
}

/// The sample with a change, sealed anew, so that only the change can be at fault.
std::string changed(const std::function<void(Json&)>& change) {
  Json json = *format::parse_json(write_manifest(sample()), format::kManifestDocument);
  change(json);
  json["seal"] = "";
  json["seal"] = to_hex(format::sha256(canonical_json(json)));
  return json.dump();
}

}  // namespace

TEST_CASE("manifest: reads back as it was written, and writes the same bytes again") {
  const std::string text = write_manifest(sample());
  const auto read = format::parse_manifest(text);
  REQUIRE_MESSAGE(read.has_value(), read.error().message);
  CHECK(write_manifest(*read) == text);
  REQUIRE(read->files[1].experts.size() == 1);
  CHECK(read->files[1].experts[0].key == ExpertKey{LayerId(3), ExpertId(7)});
  CHECK(read->files[1].experts[0].digest == format::sha256("x"));
  CHECK(read->files[0].row_blocks[0].digests.size() == 2);
  CHECK(read->origin.repository == "org/name");
}

TEST_CASE("manifest: row blocks are found by tensor in whatever order they are listed") {
  Manifest manifest = sample();
  manifest.files[3].row_blocks = {{2, 2, {format::sha256("c")}}, {0, 2, {format::sha256("a")}}};
  const auto read = format::parse_manifest(write_manifest(manifest));
  REQUIRE_MESSAGE(read.has_value(), read.error().message);
  REQUIRE(read->files[3].row_blocks.size() == 2);
  CHECK(read->files[3].row_blocks[0].tensor == 0);
  CHECK(read->files[3].row_blocks[1].digests[0] == format::sha256("c"));
}

TEST_CASE("manifest: any changed character breaks the seal") {
  const std::string text = write_manifest(sample());
  for (const char* part : {"\"size\":100", "org/name", "007.safetensors", "\"major\":1"}) {
    std::string broken = text;
    const size_t at = broken.find(part);
    REQUIRE(at != std::string::npos);
    broken[at + std::string_view(part).size() - 1] ^= 1;
    CHECK_FALSE(format::parse_manifest(broken).has_value());
  }
}

TEST_CASE("manifest: a newer version and unknown requirements are named") {
  const auto newer = format::parse_manifest(changed([](Json& json) { json["format"]["major"] = 2; }));
  CHECK(newer.error().kind == ErrorKind::unsupported);
  CHECK(newer.error().message.find("2.0") != std::string::npos);
  const auto needs = format::parse_manifest(changed([](Json& json) { json["requires"] = {"brotli", "mirrors"}; }));
  CHECK(needs.error().kind == ErrorKind::unsupported);
  CHECK(needs.error().message.find("brotli, mirrors") != std::string::npos);
  CHECK(format::parse_manifest(changed([](Json& json) { json["format"]["minor"] = 7; })).has_value());
}

TEST_CASE("manifest: a layer map reads back, and is required of readers") {
  Manifest manifest = sample();
  CHECK_FALSE(format::parse_manifest(write_manifest(manifest))->layer_map);
  manifest.layer_map = format::parse_layers("0-3,2-5").value();
  manifest.requirements = {format::kLayerMapKey};
  const std::string text = write_manifest(manifest);
  const auto read = format::parse_manifest(text);
  REQUIRE_MESSAGE(read.has_value(), read.error().message);
  CHECK(read->layer_map == manifest.layer_map);
  CHECK(write_manifest(*read) == text);
}

TEST_CASE("manifest: aliases read back, are required of readers, and stand for tensors that there are") {
  const auto with = [](const Json& aliases) {
    return changed([&](Json& j) {
      j["requires"] = {"aliases"};
      j["aliases"] = aliases;
    });
  };
  const Json tied = {{"lm_head.weight", "model.embed_tokens.weight"}};
  const auto read = format::parse_manifest(with(tied));
  REQUIRE_MESSAGE(read.has_value(), read.error().message);
  CHECK(read->aliases == std::map<std::string, std::string>{{"lm_head.weight", "model.embed_tokens.weight"}});
  CHECK(write_manifest(*read) == write_manifest(format::parse_manifest(write_manifest(*read)).value()));
  CHECK(opened(with(tied)) == "opened");

  const auto refused = [](const std::string& manifest) {
    const auto wrong = format::parse_manifest(manifest);
    return wrong ? "read" : wrong.error().message;
  };
  CHECK(refused(changed([&](Json& j) { j["aliases"] = tied; })).find("lacks the other") != std::string::npos);
  CHECK(refused(changed([](Json& j) { j["requires"] = {"aliases"}; })).find("lacks the other") != std::string::npos);
  CHECK(refused(with({{"lm_head.weight", 1}})).find("stands for no name") != std::string::npos);
  CHECK(opened(with({{"lm_head.weight", "absent"}})).find("which no file holds") != std::string::npos);
  CHECK(opened(with({{"a", "model.embed_tokens.weight"}, {"b", "a"}})).find("which no file holds") !=
        std::string::npos);
  CHECK(opened(with({{"w", "model.layers.3.mlp.experts.7.w"}})).find("of an expert") != std::string::npos);
  CHECK(opened(with({{"odd.{layer}.{expert}", "model.embed_tokens.weight"}})).find("is in both") != std::string::npos);
}

TEST_CASE("manifest: files and aliases that claim more bytes than there can be are refused") {
  const std::string huge = opened(changed([](Json& j) {  // each alone is one that a file could have
    const uint64_t columns = 1ULL << 58;
    j["layouts"][0]["tensors"][0]["shape"] = {2, columns};
    j["layouts"][0]["tensors"][0]["data_offsets"] = {0, columns * 4};
    j["files"][0]["size"] = 4096 + columns * 4;
    j["files"][0].erase("row_blocks");
    j["requires"] = {"aliases"};
    for (int i = 0; i < 16; ++i)
      j["aliases"]["alias" + std::to_string(i)] = "model.embed_tokens.weight";
  }));
  CHECK_MESSAGE(huge.find("which is no size of a file") != std::string::npos, huge);
}

TEST_CASE("manifest: what a part is of, what was read of a shard and what rounding cost read back") {
  Manifest manifest = sample();
  CHECK(holds_source_bytes(manifest));
  manifest.coverage.of = {.layers = 61, .experts = 1000, .tensors = 1ULL << 60, .payload_bytes = 1ULL << 61};
  manifest.source.push_back({"model-2.safetensors", 100, {}, 40});
  manifest.source.push_back({"model-3.safetensors", 100, {}, 0});
  manifest.rounding_errors = {
      {"attention",
       {{"tensors", 2}, {"relative_rms", 0.1 + 0.2}, {"worst", {{"name", "x"}, {"relative_rms", 1.0 / 3}}}}}};
  const std::string text = write_manifest(manifest);
  const auto read = format::parse_manifest(text);
  REQUIRE_MESSAGE(read.has_value(), read.error().message);
  CHECK(read->coverage.of == manifest.coverage.of);
  CHECK(read->coverage.tensors == 3);
  CHECK(read->source[0].sha256 == format::sha256("source"));
  CHECK_FALSE(read->source[1].sha256);
  CHECK(read->source[1].read_bytes == 40);
  CHECK(read->source[2].read_bytes == 0);
  CHECK(read->rounding_errors["attention"]["relative_rms"].get<double>() == 0.1 + 0.2);
  CHECK(write_manifest(*read) == text);
  CHECK_FALSE(holds_source_bytes(*read));
}

TEST_CASE("manifest: the source's shards are in it unless a recipe left out or converted something") {
  for (const auto& [recipe, holds] :
       {std::pair<Json, bool>{{{"by", "layer"}}, true},
        {{{"by", "layer"}, {"layer_map", "0,1,1"}}, true},
        {{{"by", "layer"}, {"include", {{{"layers", "0-99"}}}}}, true},  // if it left out nothing
        {{{"by", "layer"}, {"drop_mtp", true}}, false},
        {{{"by", "layer"}, {"transform", {{{"kind", "fp8-to-bf16"}}}}}, false}}) {
    Manifest manifest = sample();
    manifest.recipe = recipe;
    CHECK(holds_source_bytes(manifest) == holds);
  }
}

TEST_CASE("manifest: contradictions and escapes are refused") {
  struct Case {
    const char* name;
    std::function<void(Json&)> change;
  };
  const Case cases[] = {
      {"path escapes", [](Json& j) { j["files"][0]["path"] = "../x"; }},
      {"absolute companion", [](Json& j) { j["companions"][0]["path"] = "/x"; }},
      {"listed twice", [](Json& j) { j["companions"][0]["path"] = "model/embed.safetensors"; }},
      {"layout out of range", [](Json& j) { j["files"][0]["layout"] = 9; }},
      {"size that does not fit", [](Json& j) { j["files"][0]["size"] = 4113; }},
      {"size that overflows", [](Json& j) { j["files"][0]["data_start"] = ~0ULL; }},
      {"too few digests", [](Json& j) { j["files"][1]["tensors"].erase(0); }},
      {"digest that is none", [](Json& j) { j["files"][1]["tensors"][0] = "xyz"; }},
      {"offsets with a hole",
       [](Json& j) {
         j["layouts"][1]["tensors"][1]["data_offsets"] = {5, 9};
       }},
      {"shape that overflows",
       [](Json& j) {
         j["layouts"][1]["tensors"][1]["shape"] = {~0ULL, ~0ULL};
       }},
      {"unknown dtype", [](Json& j) { j["layouts"][1]["tensors"][1]["dtype"] = "F33"; }},
      {"row blocks of nothing", [](Json& j) { j["files"][0]["row_blocks"][0]["tensor"] = 5; }},
      {"row blocks of no rows", [](Json& j) { j["files"][0]["row_blocks"][0]["rows_per_block"] = 0; }},
      {"too few row blocks", [](Json& j) { j["files"][0]["row_blocks"][0]["sha256"].erase(0); }},
      {"row blocks whose bytes wrap to none",
       [](Json& j) { j["files"][0]["row_blocks"][0]["rows_per_block"] = 1ULL << 62; }},
      {"row blocks of more rows than can be, and no digest",
       [](Json& j) {
         j["files"][0]["row_blocks"][0]["rows_per_block"] = ~0ULL;
         j["files"][0]["row_blocks"][0]["sha256"] = Json::array();
       }},
      {"row blocks of more rows than can be",
       [](Json& j) {
         j["files"][0]["row_blocks"][0]["rows_per_block"] = ~0ULL;
         j["files"][0]["row_blocks"][0]["sha256"].erase(0);
       }},
      {"row blocks of one tensor twice",
       [](Json& j) { j["files"][0]["row_blocks"].push_back(Json(j["files"][0]["row_blocks"][0])); }},
      {"row blocks of rows that are no whole bytes",
       [](Json& j) {
         j["layouts"][0]["tensors"][0]["dtype"] = "F4";
         j["layouts"][0]["tensors"][0]["shape"] = {32, 1};
         j["files"][0]["row_blocks"][0]["rows_per_block"] = 16;
       }},
      {"the header's own entry as a tensor", [](Json& j) { j["layouts"][1]["tensors"][1]["name"] = "__metadata__"; }},
      {"hidden file", [](Json& j) { j["files"][0]["path"] = ".git/config"; }},
      {"hidden companion", [](Json& j) { j["companions"][0]["path"] = "a/.b"; }},
      {"hidden shard", [](Json& j) { j["source"][0]["path"] = ".reshard/journal"; }},
      {"the manifest as companion", [](Json& j) { j["companions"][0]["path"] = "manifest.json"; }},
      {"a folder that is a file", [](Json& j) { j["companions"][0]["path"] = "model"; }},
      {"a file below a file", [](Json& j) { j["companions"][0]["path"] = "model/embed.safetensors/x"; }},
      {"a shard that is listed twice", [](Json& j) { j["source"].push_back(Json(j["source"][0])); }},
      {"companion larger than any", [](Json& j) { j["companions"][0]["size"] = ~0ULL; }},
      {"shard larger than any", [](Json& j) { j["source"][0]["size"] = ~0ULL; }},
      {"data that begin before the header",
       [](Json& j) {
         j["files"][0]["data_start"] = 8;
         j["files"][0]["size"] = 24;
       }},
      {"layer out of range", [](Json& j) { j["files"][1]["layer"] = 70000; }},
      {"expert out of range", [](Json& j) { j["files"][1]["experts"][0]["expert"] = 70000; }},
      {"expert that is no number", [](Json& j) { j["files"][1]["experts"][0]["expert"] = "7"; }},
      {"expert without a layer", [](Json& j) { j["files"][1]["experts"][0].erase("layer"); }},
      {"expert without a digest", [](Json& j) { j["files"][1]["experts"][0].erase("sha256"); }},
      {"expert that is no object", [](Json& j) { j["files"][1]["experts"][0] = 7; }},
      {"experts that are no list", [](Json& j) { j["files"][1]["experts"] = 7; }},
      {"expert of another layer", [](Json& j) { j["files"][2]["experts"][1]["layer"] = 5; }},
      {"expert listed twice", [](Json& j) { j["files"][2]["experts"][1]["expert"] = 0; }},
      {"experts that descend", [](Json& j) { std::swap(j["files"][2]["experts"][0], j["files"][2]["experts"][1]); }},
      {"expert in two files", [](Json& j) { j["files"][3]["experts"][0]["layer"] = 4; }},
      {"fewer experts than its names need", [](Json& j) { j["files"][2]["experts"].erase(1); }},
      {"no experts where names need one", [](Json& j) { j["files"][1].erase("experts"); }},
      {"an entry that there is not",
       [](Json& j) { j["layouts"][2]["tensors"][1]["name"] = "model.layers.{layer}.mlp.experts.{expert[2]}.w"; }},
      {"an entry of many digits",
       [](Json& j) {
         j["layouts"][2]["tensors"][1]["name"] = "model.layers.{layer}.mlp.experts.{expert[18446744073709551615]}.w";
       }},
      {"files is no list", [](Json& j) { j["files"] = 3; }},
      {"file is no object", [](Json& j) { j["files"][0] = 3; }},
      {"missing recipe", [](Json& j) { j.erase("recipe"); }},
      {"shard without digest or what was read", [](Json& j) { j["source"][0].erase("sha256"); }},
      {"more read than there is",
       [](Json& j) {
         j["source"][0].erase("sha256");
         j["source"][0]["read"] = 101;
       }},
      {"part of something that is no object", [](Json& j) { j["coverage"]["of"] = 3; }},
      {"part of something of no size",
       [](Json& j) {
         j["coverage"]["of"] = {{"layers", 1}};
       }},
      {"rounding errors that are no object", [](Json& j) { j["rounding_errors"] = 3; }},
      {"rounding errors of null", [](Json& j) { j["rounding_errors"] = nullptr; }},
      {"rounding error that is no object",
       [](Json& j) {
         j["rounding_errors"] = {{"norm", 3}};
       }},
      {"rounding error that is no number",
       [](Json& j) {
         j["rounding_errors"] = {
             {"norm", {{"tensors", 1}, {"relative_rms", nullptr}, {"worst", {{"name", "x"}, {"relative_rms", 0.5}}}}}};
       }},
      {"rounding error without a worst tensor",
       [](Json& j) {
         j["rounding_errors"] = {{"norm", {{"tensors", 1}, {"relative_rms", 0.5}}}};
       }},
      {"layer map that is not required",
       [](Json& j) {
         j["layer_map"] = {0, 1, 1};
       }},
      {"layer map that is required and missing", [](Json& j) { j["requires"] = {"layer_map"}; }},
      {"layer map of nothing",
       [](Json& j) {
         j["requires"] = {"layer_map"};
         j["layer_map"] = Json::array();
       }},
      {"layer map that is no list",
       [](Json& j) {
         j["requires"] = {"layer_map"};
         j["layer_map"] = "0-3";
       }},
  };
  for (const Case& entry : cases) {
    CAPTURE(entry.name);
    const auto read = format::parse_manifest(changed(entry.change));
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().kind == ErrorKind::invalid);
  }
  CHECK_FALSE(format::parse_manifest("[]").has_value());
  CHECK_FALSE(format::parse_manifest("").has_value());
}

TEST_CASE("manifest: how a compressed file lies reads back, and frames that do not fit it are refused") {
  const auto with = [](const Json& frames, uint64_t size_bytes, const std::function<void(Json&)>& more) {
    return format::parse_manifest(changed([&](Json& j) {
      j["requires"] = {"zstd"};
      j["files"][0]["zstd"] = {{"frames", frames}, {"sha256", to_hex(format::sha256("z"))}, {"size", size_bytes}};
      if (more) more(j);
    }));
  };
  const uint64_t table_bytes = format::seek_table_bytes(2);
  const auto read = with({30, 20}, 50 + table_bytes, {});  // the header, and the tensor
  REQUIRE_MESSAGE(read.has_value(), read.error().message);
  CHECK(read->files[0].zstd->frames == std::vector<uint32_t>{30, 20});
  CHECK(stored_file(read->files[0]).path == "model/embed.safetensors.zst");
  CHECK(stored_file(read->files[0]).size_bytes == 50 + table_bytes);
  const auto huge = [](Json& j) {  // cut into frames of 1 MiB it would not fit into memory
    j["layouts"][0]["tensors"][0]["shape"] = {1ULL << 49, 2};
    j["layouts"][0]["tensors"][0]["data_offsets"] = {0, 1ULL << 51};
    j["files"][0]["size"] = 4096 + (1ULL << 51);
    j["files"][0].erase("row_blocks");
  };
  for (const auto& wrong :
       {with({30, 20, 1}, 51 + format::seek_table_bytes(3), {}), with({50}, 50 + format::seek_table_bytes(1), {}),
        with({30, 20}, 51 + table_bytes, {}), with({50, 0}, 50 + table_bytes, {}), with({30, -20}, 10, {}),
        with({30, 1ULL << 33}, (1ULL << 33) + 30 + table_bytes, {}), with({30, 20}, 50 + table_bytes, huge)}) {
    REQUIRE_FALSE(wrong.has_value());
    CHECK(wrong.error().kind == ErrorKind::invalid);
  }
}

TEST_CASE("manifest: names are expanded by the file's layer and experts, and literal without a layer") {
  const Manifest manifest = sample();
  const auto names = [&](size_t file) {
    std::vector<std::string> all;
    for (const format::LayoutTensor& tensor : manifest.layouts[manifest.files[file].layout].tensors)
      all.push_back(tensor_name(manifest.files[file], tensor));
    return all;
  };
  CHECK(names(1) == std::vector<std::string>{"model.layers.3.mlp.experts.7.w", "model.layers.3.mlp.experts.7.s"});
  CHECK(names(2) == std::vector<std::string>{"model.layers.4.mlp.experts.0.w", "model.layers.4.mlp.experts.2.w"});
  CHECK(names(3)[2] == "odd.{layer}.{expert}");
  CHECK(find_expert(manifest.files[2], {LayerId(4), ExpertId(2)}) == 1);
  CHECK_FALSE(find_expert(manifest.files[2], {LayerId(4), ExpertId(1)}));
  CHECK_FALSE(find_expert(manifest.files[0], {LayerId(4), ExpertId(1)}));
}

TEST_CASE("manifest: a catalogue is refused when names repeat, or experts are not those that the files list") {
  CHECK(opened(write_manifest(sample())) == "opened");
  struct Case {
    const char* message;
    std::function<void(Json&)> change;
  };
  const Case cases[] = {
      {"is in both",
       [](Json& j) {  // the shard again, under another name
         Json file = j["files"][3];
         file["path"] = "model/model-00002-of-00002.safetensors";
         file.erase("experts");
         j["files"].push_back(file);
       }},
      {"is in both", [](Json& j) { j["layouts"][3]["tensors"][2]["name"] = "model.layers.4.mlp.experts.0.w"; }},
      {"\"model.layers.4.mlp.experts.0.w\" is in both",
       [](Json& j) { j["layouts"][2]["tensors"][1]["name"] = "model.layers.{layer}.mlp.experts.{expert[0]}.w"; }},
      {"does not list", [](Json& j) { j["files"][3].erase("experts"); }},
      {"does not list", [](Json& j) { j["files"][3]["experts"].erase(0); }},
      {"does not list", [](Json& j) { j["layouts"][3]["tensors"][2]["name"] = "model.layers.4.mlp.experts.1.w"; }},
      {"does not list", [](Json& j) { j["layouts"][0]["tensors"][0]["name"] = "model.layers.9.mlp.experts.1.w"; }},
      {"holds none of its tensors", [](Json& j) { j["layouts"][3]["tensors"][1]["name"] = "x"; }},
      {"holds none of its tensors",
       [](Json& j) { j["layouts"][2]["tensors"][1]["name"] = "model.layers.{layer}.mlp.experts.{expert[x]}.w"; }},
      {"holds none of its tensors",
       [](Json& j) {
         j["files"][0]["experts"] = {{{"layer", 9}, {"expert", 1}, {"sha256", std::string(64, 'a')}}};
       }},
  };
  for (const Case& entry : cases) {
    const std::string message = opened(changed(entry.change));
    CHECK_MESSAGE(message.find(entry.message) != std::string::npos, message);
  }
}

TEST_CASE("manifest: an expert's digest does not depend on the order of its tensors") {
  const format::NamedDigest a{"a", Dtype::f32, {1, 2}, format::sha256("1")};
  const format::NamedDigest b{"b", Dtype::u8, {}, format::sha256("2")};
  CHECK(format::expert_digest({a, b}) == format::expert_digest({b, a}));
  CHECK(format::expert_digest({a, b}) != format::expert_digest({a}));
}

TEST_CASE("digest: hexadecimal reads back, and nothing else does") {
  const format::Digest digest = format::sha256("abc");
  CHECK(to_hex(digest) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(format::parse_digest(to_hex(digest)) == digest);
  CHECK_FALSE(format::parse_digest(std::string(64, 'A')));
  CHECK_FALSE(format::parse_digest(std::string(63, 'a')));
}

TEST_CASE("manifest: the example of docs/format.md is one that this program reads") {
  std::ifstream document(DSPACK_ROOT "/docs/format.md");
  REQUIRE(document.good());
  const std::string text{std::istreambuf_iterator<char>(document), {}};
  const std::string begin_mark = "<!-- example manifest -->\n```json\n";
  const size_t begin = text.find(begin_mark);
  REQUIRE(begin != std::string::npos);
  const size_t start = begin + begin_mark.size();
  const std::string example = text.substr(start, text.find("```", start) - start);
  const auto manifest = format::parse_manifest(example);
  REQUIRE_MESSAGE(manifest.has_value(), manifest.error().message);
  CHECK(manifest->files.size() == 3);
  CHECK(manifest->layouts.size() == 3);
}

}  // namespace dspack::manifest_test
