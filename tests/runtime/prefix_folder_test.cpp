// What of a prefix cache's folder is believed, and what of it is removed.
#include "runtime/generate/prefix_folder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "tests/runtime/support/prefix_lab.h"

namespace dspack::runtime::prefix_folder_test {
namespace {

using test::numbers;
using Lab = test::PrefixLab;

TEST_CASE("prefix cache: of what begins with a dot, only a block's temporary file is removed") {
  Lab lab;
  const std::string block = "kv-" + to_hex(format::sha256("x")) + ".safetensors";
  const std::string other = "kv-" + to_hex(format::sha256("y")) + ".safetensors";
  const test::TempFolder elsewhere;
  elsewhere.write("precious", "mine");
  lab.folder.write(".my-kv-backup/precious", "mine");
  lab.folder.write(".kv-notes", "mine");
  lab.folder.write(".kv-1.tmp", "mine");
  lab.folder.write("." + block, "mine");
  lab.folder.write("." + block + ".tmp.orig", "mine");
  lab.folder.write(".x" + block + ".tmp", "mine");
  lab.folder.write("." + block + ".tmp", "what a killed process was writing");
  lab.folder.write("." + other + ".tmp/precious", "mine");
  const std::string linked = ".kv-" + to_hex(format::sha256("z")) + ".safetensors.tmp";
  std::filesystem::create_symlink(elsewhere.path() / "precious", lab.folder.path() / linked);
  const auto names = [&] { return format::posix_file_system().list(lab.folder.path()).value(); };
  std::vector<std::string> wanted = names();
  REQUIRE(std::erase(wanted, "." + block + ".tmp") == 1);
  {
    PrefixCache cache = lab.on_disk();
    cache.keep(lab.computed(numbers(64)));
  }
  std::vector<std::string> left = names();
  CHECK(std::erase_if(left, [&](const std::string& name) { return std::ranges::find(wanted, name) == wanted.end(); }) ==
        3);  // the block, the lock, the uses
  CHECK(left == wanted);
  CHECK(lab.folder.read(".my-kv-backup/precious") == "mine");
  CHECK(lab.folder.read("." + other + ".tmp/precious") == "mine");
  CHECK(elsewhere.read("precious") == "mine");
}

TEST_CASE("prefix cache: room is made by removing files, never a folder of that name") {
  Lab lab;
  const std::string folder = "kv-" + to_hex(format::sha256("x")) + ".safetensors";
  lab.folder.write(folder + "/precious", "mine");
  const uint64_t most = 2 * kv_file_bytes(lab.identity, {0, 64});
  {
    PrefixCache cache = lab.on_disk(0, most);
    for (uint32_t i = 0; i < 4; ++i)
      cache.keep(lab.computed(numbers(64, 200 * i)));
    CHECK(cache.counts().disk_bytes <= most);
  }
  CHECK(lab.folder.read(folder + "/precious") == "mine");
}

TEST_CASE("prefix cache: what others can have written is refused by name") {
  namespace fs = std::filesystem;
  Lab lab;
  lab.on_disk().keep(lab.computed(numbers(150)));
  const fs::path second = lab.file_at(64);
  SUBCASE("the folder") {
    for (const fs::perms more : {fs::perms::group_write, fs::perms::others_write}) {
      fs::permissions(lab.folder.path(), more, fs::perm_options::add);
      const auto opened =
          PrefixFolder::open(format::posix_file_system(), lab.folder.path(), lab.identity, std::nullopt, lab.logging());
      fs::permissions(lab.folder.path(), more, fs::perm_options::remove);
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind == ErrorKind::invalid);
      CHECK(opened.error().message.find(lab.folder.path().string() + ": others may write to it") == 0);
    }
    CHECK(lab.files() == 3);
  }
  SUBCASE("a file") {
    fs::permissions(second, fs::perms::others_write, fs::perm_options::add);
    PrefixCache cache = lab.on_disk();
    CHECK(lab.restored(cache, numbers(150)) == 64);
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find(second.string() + ": others may write to it") != std::string::npos);
  }
  SUBCASE("a file that becomes so while the cache is in use") {
    {
      PrefixCache cache = lab.on_disk();
      fs::permissions(second, fs::perms::group_write, fs::perm_options::add);
      CHECK(lab.restored(cache, numbers(150)) == 64);
    }  // its thread has removed what is to be removed
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find(second.string() + ": others may write to it") != std::string::npos);
    CHECK_FALSE(fs::exists(second));
  }
  SUBCASE("its own files are for its owner alone") {
    for (const auto& entry : fs::directory_iterator(lab.folder.path())) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".lock")) continue;  // nothing is in it
      CHECK((entry.status().permissions() & fs::perms::mask) == (fs::perms::owner_read | fs::perms::owner_write));
    }
  }
}

TEST_CASE("prefix cache: links are not followed, at the start or later") {
  namespace fs = std::filesystem;
  Lab lab;
  lab.on_disk().keep(lab.computed(numbers(150)));
  const fs::path second = lab.file_at(64);
  const test::TempFolder elsewhere;
  const fs::path away = elsewhere.path() / "block";
  const auto link = [&] {
    fs::copy_file(second, away);
    fs::remove(second);
    fs::create_symlink(away, second);
  };
  SUBCASE("at the start") {
    link();
    PrefixCache cache = lab.on_disk();
    CHECK(cache.counts().disk_blocks == 1);
    CHECK(cache.counts().disk_bytes == kv_file_bytes(lab.identity, {0, 64}));
    CHECK(lab.log.empty());  // it is no file of ours, and what follows it is gone with it
    CHECK(lab.restored(cache, numbers(150)) == 64);
    CHECK(fs::is_symlink(second));
  }
  SUBCASE("later") {
    PrefixCache cache = lab.on_disk();
    link();
    CHECK(lab.restored(cache, numbers(150)) == 64);
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("symbolic link") != std::string::npos);
  }
  CHECK(fs::exists(away));
}

TEST_CASE("prefix cache: a block counts only at its own place, and as the one that was there at the start") {
  namespace fs = std::filesystem;
  Lab lab;
  lab.on_disk().keep(lab.computed(numbers(192)));
  REQUIRE(lab.files() == 3);
  const fs::path second = lab.file_at(64);
  const fs::path third = lab.file_at(128);
  const auto at = [](uint32_t first) { return [first](KvBlock& block) { block.first = first; }; };
  SUBCASE("a position that its beginning does not reach") {
    lab.forge(second, at(65));
    PrefixCache cache = lab.on_disk();
    CHECK(cache.counts().disk_blocks == 1);
    CHECK(lab.restored(cache, numbers(192)) == 64);
  }
  SUBCASE("one that its beginning has already") {
    lab.forge(second, at(0));
    PrefixCache cache = lab.on_disk();
    CHECK(cache.counts().disk_blocks == 1);
    CHECK(lab.restored(cache, numbers(192)) == 64);
  }
  SUBCASE("another position meanwhile") {
    PrefixCache cache = lab.on_disk();
    lab.forge(second, at(128));
    CHECK(lab.restored(cache, numbers(192)) == 64);
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("another place") != std::string::npos);
    CHECK_FALSE(fs::exists(third));  // nothing without what comes before it
  }
  SUBCASE("another block meanwhile") {
    PrefixCache cache = lab.on_disk();
    fs::copy_file(third, second, fs::copy_options::overwrite_existing);
    CHECK(lab.restored(cache, numbers(192)) == 64);
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("its tokens are not those that its name says") != std::string::npos);
  }
  SUBCASE("other tokens meanwhile") {
    PrefixCache cache = lab.on_disk();
    lab.forge(second, [](KvBlock& block) { block.tokens.back() ^= 1U; });
    CHECK(lab.restored(cache, numbers(192)) == 64);
    REQUIRE(lab.log.size() == 1);
    CHECK(lab.log[0].find("its tokens are not those that its name says") != std::string::npos);
  }
  SUBCASE("what is no file meanwhile") {
    {
      PrefixCache cache = lab.on_disk();
      fs::remove(second);
      fs::create_directory(second);
      CHECK(lab.restored(cache, numbers(192)) == 64);
    }
    CHECK(lab.log.size() == 2);  // it cannot be read, and not be removed
    CHECK(fs::is_directory(second));
  }
}

}  // namespace
}  // namespace dspack::runtime::prefix_folder_test
