#include <doctest/doctest.h>

#include <fstream>

#include "format/manifest.h"

using namespace dspack;
using namespace dspack::format;
using format::Json;
using format::Manifest;

namespace {

Manifest sample() {
  Manifest manifest;
  manifest.program = "dspack test";
  manifest.recipe = {{"by", "expert"}};
  manifest.plan = std::string(64, 'a');
  manifest.origin = {"hub", "org/name", "main"};
  manifest.coverage = {.layers = 1, .experts = 1, .tensors = 3, .payload_bytes = 24};
  manifest.source = {{"model.safetensors", 100, format::sha256("source")}};
  manifest.layouts = {{{{"model.embed_tokens.weight", Dtype::bf16, {4, 2}, {0, 16}}}},
                      {{{"model.layers.{layer}.mlp.experts.{expert}.w", Dtype::f8_e4m3, {2, 2}, {0, 4}},
                        {"model.layers.{layer}.mlp.experts.{expert}.s", Dtype::f32, {1}, {4, 8}}}}};
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
  expert.expert = ExpertId(7);
  expert.layout = 1;
  expert.data_start = 4096;
  expert.size_bytes = 4104;
  expert.expert_digest = format::sha256("x");
  expert.tensors = {format::sha256("w"), format::sha256("s")};
  manifest.files = {embed, expert};
  manifest.companions = {{"config.json", 2, format::sha256("{}")}};
  return manifest;
}

/// The sample with a change, sealed anew, so that only the change can be at fault.
std::string changed(const std::function<void(Json&)>& change) {
  Json json = *format::parse_json(write_manifest(sample()));
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
  CHECK(read->files[1].expert == ExpertId(7));
  CHECK(read->files[0].row_blocks[0].digests.size() == 2);
  CHECK(read->origin.repository == "org/name");
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
  const auto needs = format::parse_manifest(changed([](Json& json) { json["requires"] = {"zstd", "aliases"}; }));
  CHECK(needs.error().kind == ErrorKind::unsupported);
  CHECK(needs.error().message.find("zstd, aliases") != std::string::npos);
  CHECK(format::parse_manifest(changed([](Json& json) { json["format"]["minor"] = 7; })).has_value());
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
      {"layer out of range", [](Json& j) { j["files"][1]["layer"] = 70000; }},
      {"files is no list", [](Json& j) { j["files"] = 3; }},
      {"file is no object", [](Json& j) { j["files"][0] = 3; }},
      {"missing recipe", [](Json& j) { j.erase("recipe"); }},
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
