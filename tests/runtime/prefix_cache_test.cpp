#include "runtime/generate/prefix_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "tests/runtime/support/prefix_lab.h"

namespace dspack::runtime::prefix_cache_test {
namespace {

using test::joined;
using test::kPrefixContext;
using test::numbers;
using test::Tokens;
using Lab = test::PrefixLab;

TEST_CASE("prefix cache: a prompt gets what it has in common with what was kept, to the token") {
  Lab lab;
  PrefixCache cache = lab.cache(kPrefixContext);
  const Tokens first = numbers(150);
  cache.keep(lab.computed(first));
  CHECK(lab.restored(cache, first) == 150);
  CHECK(lab.restored(cache, joined(first, {7, 8})) == 150);
  CHECK(lab.restored(cache, joined(numbers(100), {900, 901})) == 100);
  CHECK(lab.restored(cache, numbers(64)) == 64);
  CHECK(lab.restored(cache, numbers(3)) == 3);
  CHECK(lab.restored(cache, {5}) == 0);
  CHECK(lab.restored(cache, {}) == 0);
  CHECK(cache.counts().memory_bytes == lab.bytes(150));
  CHECK(cache.counts().memory_tokens == 150 + 150 + 100 + 64 + 3);
  Sequence begun = lab.computed(numbers(70));
  CHECK(cache.restore(begun, first) == 80);
  CHECK(begun.length() == 150);
}

TEST_CASE("prefix cache: what conversations share is stored once, and a longer one takes the place of its beginning") {
  Lab lab;
  PrefixCache cache = lab.cache(2 * kPrefixContext);
  const Tokens shared = numbers(128);
  cache.keep(lab.computed(joined(shared, {500, 501})));
  CHECK(cache.counts().memory_bytes == lab.bytes(130));
  cache.keep(lab.computed(joined(shared, {600, 601, 602})));
  CHECK(cache.counts().memory_bytes == lab.bytes(133));
  cache.keep(lab.computed(joined(shared, {500, 501, 502, 503})));
  CHECK(cache.counts().memory_bytes == lab.bytes(135));
  cache.keep(lab.computed(joined(shared, {500})));
  CHECK(cache.counts().memory_bytes == lab.bytes(135));
  CHECK(cache.counts().memory_blocks == 4);
  CHECK(lab.restored(cache, joined(shared, {500, 501, 502, 503})) == 132);
  CHECK(lab.restored(cache, joined(shared, {600, 601, 602})) == 131);
}

TEST_CASE("prefix cache: the conversation that was unused for longest goes, from its end on") {
  Lab lab;
  PrefixCache cache = lab.cache(5 * 64);
  const Tokens a = numbers(128);
  const Tokens b = numbers(128, 300);
  const Tokens c = numbers(128, 600);
  cache.keep(lab.computed(a));
  cache.keep(lab.computed(b));
  CHECK(lab.restored(cache, a) == 128);  // used
  cache.keep(lab.computed(c));
  CHECK(cache.counts().memory_bytes <= lab.bytes(5 * 64));
  CHECK(lab.restored(cache, c) == 128);
  CHECK(lab.restored(cache, a) == 128);
  CHECK(lab.restored(cache, b) == 64);
  // One that is too long for all of it is kept as far as it goes.
  cache.keep(lab.computed(numbers(390, 700)));
  CHECK(lab.restored(cache, numbers(390, 700)) == 5 * 64);
  CHECK(lab.restored(cache, a) == 0);
  PrefixCache none = lab.cache(0);
  none.keep(lab.computed(a));
  CHECK(lab.restored(none, a) == 0);
}

TEST_CASE("prefix cache: on disk it outlives the process, and memory is filled from there") {
  Lab lab;
  const Tokens a = numbers(150);
  const Tokens b = joined(numbers(64), numbers(10, 700));
  {
    PrefixCache cache = lab.on_disk();
    cache.keep(lab.computed(a));
    cache.keep(lab.computed(b));
    CHECK(cache.counts().disk_blocks == 4);
    CHECK(cache.counts().memory_bytes == 0);
    CHECK(lab.restored(cache, a) == 150);
  }
  CHECK(lab.files() == 4);
  PrefixCache cache = lab.on_disk(128);
  CHECK(cache.counts().disk_bytes == 4 * kv_file_bytes(lab.identity, {0, 0}) + lab.bytes(160) + 160 * 4);
  CHECK(lab.restored(cache, a) == 150);
  CHECK(cache.counts().memory_bytes == lab.bytes(128));
  CHECK(cache.counts().disk_tokens == 150);
  CHECK(lab.restored(cache, a) == 150);
  CHECK(cache.counts().memory_tokens == 128);
  CHECK(lab.restored(cache, b) == 74);
  cache.keep(lab.computed(joined(a, numbers(50, 900))));
  CHECK(cache.counts().disk_blocks == 5);  // the last one of a gave way to a longer one
  CHECK(lab.log.empty());
}

TEST_CASE("prefix cache: the folder keeps to its bound") {
  Lab lab;
  const uint64_t most = 4 * kv_file_bytes(lab.identity, {0, 64});
  {
    PrefixCache cache = lab.on_disk(0, most);
    for (uint32_t i = 0; i < 4; ++i)
      cache.keep(lab.computed(numbers(128, 200 * i)));
    CHECK(cache.counts().disk_bytes <= most);
    CHECK(lab.restored(cache, numbers(128, 600)) == 128);
    CHECK(lab.restored(cache, numbers(128, 400)) == 128);
    CHECK(lab.restored(cache, numbers(128, 200)) == 0);
    // Longer than all of it.
    cache.keep(lab.computed(numbers(390, 700)));
    CHECK(cache.counts().disk_bytes <= most);
    CHECK(lab.restored(cache, numbers(390, 700)) == 4 * 64);
  }
  CHECK(lab.files() == 4);
  CHECK(lab.log.empty());
}

TEST_CASE("prefix cache: what was used last stays after a restart, too") {
  Lab lab;
  const uint64_t most = 4 * kv_file_bytes(lab.identity, {0, 64});
  {
    PrefixCache cache = lab.on_disk(0, most);
    for (uint32_t i = 0; i < 4; ++i)
      cache.keep(lab.computed(numbers(64, 200 * i)));
    CHECK(lab.restored(cache, numbers(64)) == 64);  // the first that was written
  }
  SUBCASE("with the list of uses") {
    PrefixCache cache = lab.on_disk(0, most);
    cache.keep(lab.computed(numbers(64, 900)));
    CHECK(lab.restored(cache, numbers(64)) == 64);
    CHECK(lab.restored(cache, numbers(64, 200)) == 0);
  }
  SUBCASE("with one that is damaged") {
    lab.folder.write("dspack-prefix-cache.use", std::string(1000, 'x'));
    PrefixCache cache = lab.on_disk(0, most);
    CHECK(cache.counts().disk_blocks == 4);
    CHECK(lab.restored(cache, numbers(64, 600)) == 64);
  }
  CHECK(lab.log.empty());
}

TEST_CASE("prefix cache: damaged files are said and left out with what follows them") {
  Lab lab;
  lab.on_disk().keep(lab.computed(numbers(150)));
  const auto change = [&](uint32_t first, const std::function<void(std::string&)>& edit) {
    for (const auto& entry : std::filesystem::directory_iterator(lab.folder.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("kv-")) continue;
      std::string bytes = lab.folder.read(name);
      if (bytes.find(first == 0 ? "\"first\":\"0\"" : "\"first\":\"64\"") == std::string::npos) continue;
      edit(bytes);
      lab.folder.write(name, bytes);
    }
  };
  SUBCASE("rows") {
    change(64, [](std::string& bytes) { bytes.back() = static_cast<char>(bytes.back() ^ 1); });
    PrefixCache cache = lab.on_disk();
    CHECK(lab.restored(cache, numbers(150)) == 64);
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("SHA-256") != std::string::npos);
    CHECK(lab.restored(cache, numbers(150)) == 64);
    CHECK(lab.log.size() == 1);
    cache.keep(lab.computed(numbers(150)));
    CHECK(lab.restored(cache, numbers(150)) == 150);
  }
  SUBCASE("a header") {
    change(0, [](std::string& bytes) { bytes[20] = '\x01'; });
    PrefixCache cache = lab.on_disk();
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("1 of 3") != std::string::npos);
    CHECK(lab.restored(cache, numbers(150)) == 0);
    CHECK(cache.counts().disk_blocks == 0);
  }
  SUBCASE("a file that was put under another name") {
    std::string other = lab.folder.path().string() + "/kv-" + to_hex(format::sha256("x")) + ".safetensors";
    for (const auto& entry : std::filesystem::directory_iterator(lab.folder.path()))
      if (entry.path().filename().string().starts_with("kv-"))
        std::filesystem::copy_file(entry, other, std::filesystem::copy_options::overwrite_existing);
    PrefixCache cache = lab.on_disk();
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("name") != std::string::npos);
    CHECK(lab.restored(cache, numbers(150)) == 150);
  }
  SUBCASE("a file that is gone") {
    PrefixCache cache = lab.on_disk();
    for (const auto& entry : std::filesystem::directory_iterator(lab.folder.path()))
      if (entry.path().filename().string().starts_with("kv-")) std::filesystem::remove(entry);
    CHECK(lab.restored(cache, numbers(150)) == 0);
    CHECK(lab.log.size() == 1);
  }
}

TEST_CASE("prefix cache: files of another model are not used, stay while there is room, and strangers' files stay") {
  Lab lab;
  lab.on_disk().keep(lab.computed(numbers(128)));
  lab.folder.write("kv-notes.txt", "mine");
  lab.folder.write("kv-.safetensors", "mine");
  KvIdentity other = lab.identity;
  other.digest = format::sha256("another model");
  {
    PrefixCache cache(other, {.folder = lab.open(other, 4 * kv_file_bytes(lab.identity, {0, 64}))}, lab.logging());
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("another model") != std::string::npos);
    CHECK(lab.restored(cache, numbers(128)) == 0);
    cache.keep(lab.computed(numbers(64)));
    cache.keep(lab.computed(numbers(64, 100)));
  }
  {
    PrefixCache cache = lab.on_disk();
    CHECK(lab.restored(cache, numbers(128)) == 128);
  }
  {
    PrefixCache cache(other, {.folder = lab.open(other, 4 * kv_file_bytes(lab.identity, {0, 64}))}, lab.logging());
    cache.keep(lab.computed(numbers(64, 200)));
    CHECK(lab.restored(cache, numbers(64, 200)) == 64);
    CHECK(lab.restored(cache, numbers(64)) == 64);
    cache.keep(lab.computed(numbers(64, 300)));  // for which the next one goes
  }
  CHECK(std::ranges::none_of(lab.log, [](const std::string& line) { return line.find("kv-") == std::string::npos; }));
  const auto files = format::posix_file_system().list(lab.folder.path()).value();
  CHECK(std::ranges::count_if(files, [](const std::string& name) { return name.size() > 60; }) == 4);
  {
    PrefixCache cache = lab.on_disk();
    CHECK(lab.restored(cache, numbers(128)) == 0);
  }
  CHECK(lab.folder.read("kv-notes.txt") == "mine");
  CHECK(lab.folder.read("kv-.safetensors") == "mine");
}

TEST_CASE("prefix cache: what is forgotten is gone from memory and disk, with what follows its first block") {
  Lab lab;
  PrefixCache cache = lab.on_disk(kPrefixContext);
  cache.keep(lab.computed(numbers(150)));
  cache.keep(lab.computed(joined(numbers(64), numbers(10, 700))));
  const Tokens other = joined({0}, numbers(63, 300));  // begins with the same token, as all conversations do
  cache.keep(lab.computed(other));
  cache.forget(numbers(70));
  CHECK(lab.restored(cache, numbers(150)) == 1);
  CHECK(lab.restored(cache, other) == 64);
  CHECK(cache.counts().disk_blocks == 1);
  CHECK(cache.counts().memory_blocks == 1);
  cache.forget({});
  CHECK(cache.counts().disk_blocks == 1);
}

TEST_CASE("prefix cache: a folder is used by one process at a time") {
  Lab lab;
  const auto held = lab.open(lab.identity);
  const auto second =
      PrefixFolder::open(format::posix_file_system(), lab.folder.path(), lab.identity, std::nullopt, lab.logging());
  REQUIRE_FALSE(second);
  CHECK(second.error().kind == ErrorKind::conflict);
}

}  // namespace
}  // namespace dspack::runtime::prefix_cache_test
