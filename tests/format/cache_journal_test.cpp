#include <doctest/doctest.h>

#include "format/cache/cache_journal.h"

namespace dspack::cache_journal_test {

using namespace dspack;
using format::CacheDamaged;
using format::CacheForeign;
using format::CacheLoaded;
using format::Digest;

namespace {

constexpr char kOrigin[] = "http://h/ds/";

Digest digest(uint8_t seed) {
  Digest value;
  value.bytes.fill(seed);
  return value;
}

std::string journal() {
  format::KeptParts parts{.tensors = {{0, digest(3)}, {2, digest(4)}}, .row_blocks = {{1, {{7, digest(5)}}}}};
  return format::cache_line_origin(kOrigin) +
         format::cache_line("config.json", format::KeptText{.size_bytes = 5, .sha256 = digest(1)}) +
         format::cache_line_absent("tokenizer.json") +
         format::cache_line("model-1.safetensors",
                            format::KeptHeader{.file_bytes = 900, .version = "v1", .text = {80, digest(2)}}) +
         format::cache_line("model/a.safetensors", parts) +
         format::cache_line("model/e.safetensors", format::KeptFile{.sha256 = digest(6), .tensors = {digest(7)}}) +
         format::cache_line("model/f.safetensors", format::KeptFile{.sha256 = digest(8), .tensors = {}}) +
         format::cache_line_used({"model/e.safetensors"});
}

CacheLoaded loaded(std::string_view text) {
  return std::get<CacheLoaded>(format::parse_cache_journal(text, kOrigin));
}

}  // namespace

TEST_CASE("cache journal: what was written is read") {
  const CacheLoaded load = loaded(journal());
  CHECK(load.valid_bytes == journal().size());
  CHECK(load.state.texts.at("config.json").sha256 == digest(1));
  CHECK(load.state.absent.contains("tokenizer.json"));
  CHECK(load.state.headers.at("model-1.safetensors").version == "v1");
  CHECK(load.state.parts.at("model/a.safetensors").tensors.at(2) == digest(4));
  CHECK(load.state.parts.at("model/a.safetensors").row_blocks.at(1).at(7) == digest(5));
  CHECK(load.state.files.at("model/e.safetensors").tensors.size() == 1);
  CHECK(load.state.files.at("model/f.safetensors").tensors.empty());
  CHECK(load.state.used ==
        std::vector<std::string>{"model/e.safetensors", "model/f.safetensors", "model/e.safetensors"});
  CHECK(format::cache_origin(journal()) == kOrigin);
}

TEST_CASE("cache journal: a torn end was never done, wherever it is cut") {
  const std::string text = journal();
  for (size_t cut = 0; cut < text.size(); ++cut) {
    const CacheLoaded load = loaded(std::string_view(text).substr(0, cut));
    CHECK(load.valid_bytes <= cut);
    CHECK((load.valid_bytes == 0 || text[load.valid_bytes - 1] == '\n'));
  }
}

TEST_CASE("cache journal: what is removed is gone, and what it was is remembered") {
  const std::string removed = journal() + format::cache_line_removed("model/e.safetensors") +
                              format::cache_line_removed("model/f.safetensors") +
                              format::cache_line_removed("model/a.safetensors", {1, 2});
  const CacheLoaded load = loaded(removed);
  CHECK(load.state.files.empty());
  CHECK(load.state.forgotten.at("model/e.safetensors") == std::vector<Digest>{digest(7)});
  CHECK_FALSE(load.state.forgotten.contains("model/f.safetensors"));
  CHECK(load.state.parts.at("model/a.safetensors").tensors.size() == 1);
  CHECK(load.state.parts.at("model/a.safetensors").row_blocks.empty());
}

TEST_CASE("cache journal: damage, other origins and paths that escape") {
  std::string text = journal();
  text[text.size() / 2] ^= 1;
  CHECK(std::holds_alternative<CacheDamaged>(format::parse_cache_journal(text, kOrigin)));
  const auto foreign = format::parse_cache_journal(journal(), "http://other/");
  REQUIRE(std::holds_alternative<CacheForeign>(foreign));
  CHECK(std::get<CacheForeign>(foreign).origin == kOrigin);
  const std::string escapes =
      format::cache_line_origin(kOrigin) + format::cache_line_absent("../x") + format::cache_line_absent("a");
  CHECK(std::holds_alternative<CacheDamaged>(format::parse_cache_journal(escapes, kOrigin)));
}

}  // namespace dspack::cache_journal_test
