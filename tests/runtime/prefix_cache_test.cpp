#include "runtime/generate/prefix_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::prefix_cache_test {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr uint32_t kContext = 400;

Tokens numbers(uint32_t count, uint32_t from = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

Tokens joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

struct Lab {
  test::RecordingModel rig{test::tiny_folder(), {.context = kContext, .max_rows = kContext}};
  test::TempFolder folder;
  KvIdentity identity{.digest = format::sha256("this model"), .shape = rig.model().kv_shape(), .context = kContext};
  std::vector<std::string> log;

  [[nodiscard]] uint64_t bytes(uint64_t positions) const { return positions * identity.shape.position_bytes(); }
  PrefixFolder::Log logging() {
    return [this](const Error& error) { log.push_back(error.message); };
  }
  PrefixCache cache(uint64_t positions) { return {identity, {.memory_bytes = bytes(positions)}, logging()}; }
  std::unique_ptr<PrefixFolder> open(const KvIdentity& as, std::optional<uint64_t> most = std::nullopt) {
    auto opened =
        PrefixFolder::open(format::posix_file_system(), folder.path(), as, most.value_or(1'000'000'000), logging());
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().message));
    return *std::move(opened);
  }
  PrefixCache on_disk(uint64_t positions_in_memory = 0, std::optional<uint64_t> most = std::nullopt) {
    return {identity, {.memory_bytes = bytes(positions_in_memory), .folder = open(identity, most)}, logging()};
  }
  Sequence computed(const Tokens& tokens) {
    Sequence sequence = rig.sequence();
    REQUIRE(rig.model().forward({.sequence = sequence, .tokens = tokens}, rig.scratch(), {}));
    return sequence;
  }
  /// How many of the tokens the cache has; with the bits that computing them gives.
  uint32_t restored(PrefixCache& cache, const Tokens& tokens) {
    Sequence sequence = rig.sequence();
    const uint32_t count = cache.restore(sequence, tokens);
    CHECK(sequence.length() == count);
    if (count == 0) return 0;
    const Sequence again = computed(Tokens(tokens.begin(), tokens.begin() + count));
    const auto here = sequence.read_block(0, count);
    const auto there = again.read_block(0, count);
    REQUIRE((here && there));
    CHECK(here->tokens == there->tokens);
    CHECK(here->rows == there->rows);
    return count;
  }
  /// Of the block that begins there; of several any.
  [[nodiscard]] std::filesystem::path file_at(uint32_t first) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("kv-")) continue;
      if (folder.read(name).find("\"first\":\"" + std::to_string(first) + "\"") != std::string::npos) return entry;
    }
    FAIL("no such block");
    return {};
  }
  /// Writes the file anew, with everything right, as somebody could who knows the form.
  void forge(const std::filesystem::path& file, const std::function<void(KvBlock&)>& edit) const {
    const auto opened = format::posix_file_system().open_read(file);
    REQUIRE(opened);
    auto content = read_kv_file(**opened, identity);
    REQUIRE(content);
    edit(content->block);
    REQUIRE(write_kv_file(format::posix_file_system(), file, content->block, content->notes, identity));
  }
  [[nodiscard]] size_t files() const {
    const auto all = std::filesystem::directory_iterator(folder.path());
    return static_cast<size_t>(std::count_if(
        begin(all), end(all), [](const auto& each) { return each.path().filename().string().starts_with("kv-"); }));
  }
};

TEST_CASE("prefix cache: a prompt gets what it has in common with what was kept, to the token") {
  Lab lab;
  PrefixCache cache = lab.cache(kContext);
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
  PrefixCache cache = lab.cache(2 * kContext);
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
  CHECK(cache.counts().disk_bytes == 4 * kv_file_bytes(lab.identity, 0) + lab.bytes(160) + 160 * 4);
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
  const uint64_t most = 4 * kv_file_bytes(lab.identity, 64);
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
  const uint64_t most = 4 * kv_file_bytes(lab.identity, 64);
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
    PrefixCache cache(other, {.folder = lab.open(other, 4 * kv_file_bytes(lab.identity, 64))}, lab.logging());
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
    PrefixCache cache(other, {.folder = lab.open(other, 4 * kv_file_bytes(lab.identity, 64))}, lab.logging());
    cache.keep(lab.computed(numbers(64, 200)));
    CHECK(lab.restored(cache, numbers(64, 200)) == 64);
    CHECK(lab.restored(cache, numbers(64)) == 64);
  }
  CHECK(lab.folder.read("kv-notes.txt") == "mine");
  CHECK(lab.folder.read("kv-.safetensors") == "mine");
}

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
  const uint64_t most = 2 * kv_file_bytes(lab.identity, 64);
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
    PrefixCache cache = lab.on_disk();
    fs::permissions(second, fs::perms::group_write, fs::perm_options::add);
    CHECK(lab.restored(cache, numbers(150)) == 64);
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
    CHECK(cache.counts().disk_bytes == kv_file_bytes(lab.identity, 64));
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

TEST_CASE("prefix cache: what is forgotten is gone from memory and disk, with what follows its first block") {
  Lab lab;
  PrefixCache cache = lab.on_disk(kContext);
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
