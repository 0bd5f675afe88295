#include <doctest/doctest.h>

#include <filesystem>

#include "format/cache/cache_folder.h"
#include "format/cache/kept_place.h"
#include "format/cli/cache_verb.h"
#include "format/json.h"
#include "tests/support/temp_folder.h"

namespace dspack::cache_verb_test {

using namespace dspack;
using format::KeptPlace;
using format::KeptShare;
using format::KeptState;
using format::posix_file_system;

namespace {

constexpr int64_t kDay = 86'400;

KeptPlace place(const std::string& folder, const std::string& origin) {
  KeptPlace kept;
  kept.folder = folder;
  kept.origin = origin;
  return kept;
}

/// A cache folder with one small file, as CacheFolder makes it.
void make_cache(const test::TempFolder& root, const std::string& name, const std::string& origin) {
  const auto folder = format::CacheFolder::open(posix_file_system(), root.path() / name, origin);
  REQUIRE(folder);
  REQUIRE((*folder)->keep_text("config.json", "{}"));
}

/// Counts files as a progress line does.
class FileCount final : public format::Progress {
 public:
  using Progress::note;
  using Progress::started;
  void started(const format::Work& work) override { total = work.total_items; }
  void advanced(uint64_t) override {}
  void item_done() override { ++done; }
  void note(format::NoteKind, std::string_view) override {}
  void finished() override {}
  uint64_t total = 0;
  uint64_t done = 0;
};

format::KeptPlaces listed(const test::TempFolder& root) {
  auto kept = format::list_kept_places(posix_file_system(), root.path(), {});
  REQUIRE(kept);
  return std::move(*kept);
}

}  // namespace

TEST_CASE("cache verb: ages as people say them") {
  CHECK(format::age_words(-5) == "just now");
  CHECK(format::age_words(59) == "just now");
  CHECK(format::age_words(60) == "1 minute ago");
  CHECK(format::age_words(2 * 3600 + 5) == "2 hours ago");
  CHECK(format::age_words(3 * kDay) == "3 days ago");
  CHECK(format::age_words(59 * kDay) == "59 days ago");
  CHECK(format::age_words(60 * kDay) == "2 months ago");
  CHECK(format::age_words(800 * kDay) == "2 years ago");
}

TEST_CASE("cache verb: a share is 100 % only of all, and 0 % only of nothing") {
  CHECK(format::share_words(std::nullopt) == "-");
  CHECK(format::share_words(KeptShare{0, 1000}) == "0 %");
  CHECK(format::share_words(KeptShare{1, 1000}) == "< 1 %");
  CHECK(format::share_words(KeptShare{999, 1000}) == "99 %");
  CHECK(format::share_words(KeptShare{1000, 1000}) == "100 %");
}

TEST_CASE("cache verb: a name, or a beginning that only one has") {
  const std::vector<format::KeptName> places{
      {"h_a-1", "http://h/a/"}, {"h_ab-2", "http://h/a/b/"}, {"o_n-3", "hf://o/n@12"}, {"new", ""}};
  const auto chosen = [&](std::string_view name) {
    const auto index = format::choose_kept_place(places, name);
    return index ? static_cast<int>(*index) : -1;
  };
  CHECK(chosen("http://h/a/") == 0);  // exactly, though another begins so
  CHECK(chosen("http://h/a/b") == 1);
  CHECK(chosen("h_ab") == 1);
  CHECK(chosen("o/n") == 2);
  CHECK(chosen("hf://") == 2);
  CHECK(chosen("new") == 3);
  CHECK(chosen("h/") == -1);
  CHECK(chosen("") == -1);
  CHECK(chosen("b") == -1);
  const auto several = format::choose_kept_place(places, "http");
  REQUIRE_FALSE(several);
  CHECK(several.error().message == "\"http\" begins 2 names: http://h/a/, http://h/a/b/; write more of it");
}

TEST_CASE("cache verb: folders that are not ours are named and stay") {
  const test::TempFolder root;
  make_cache(root, "ours", "http://h/a/");
  root.write("elsewhere/keep.txt", "keep");
  root.write("notes", "keep");
  root.write("strange/.dspack-cache/journal", "hello\n");
  root.write("empty/.dspack-cache/else", "");
  std::filesystem::create_directory_symlink(root.path() / "ours", root.path() / "link");
  std::filesystem::create_directories(root.path() / "linked");
  std::filesystem::create_directory_symlink(root.path() / "ours" / ".dspack-cache",
                                            root.path() / "linked" / ".dspack-cache");
  const format::KeptPlaces kept = listed(root);
  REQUIRE(kept.places.size() == 1);
  CHECK(kept.places[0].origin == "http://h/a/");
  CHECK(kept.places[0].state == KeptState::partial);
  CHECK(kept.places[0].disk_bytes > 0);
  CHECK_FALSE(kept.places[0].share);  // of what model is not known
  CHECK(kept.strange.size() == 6);
  for (const format::StrangeEntry& entry : kept.strange) {
    const auto removed = format::remove_kept_place(posix_file_system(), root.path() / entry.name);
    REQUIRE_FALSE(removed);
    CHECK(removed.error().kind == ErrorKind::conflict);
  }
  CHECK(root.read("elsewhere/keep.txt") == "keep");
  CHECK(listed(root).strange.size() == 6);
  REQUIRE(format::remove_kept_place(posix_file_system(), root.path() / "ours"));
  CHECK_FALSE(std::filesystem::exists(root.path() / "ours"));
}

TEST_CASE("cache: a folder whose .dspack-cache says nothing of what else is in it is neither filled nor removed") {
  const test::TempFolder root;
  root.write("mine/precious", "x");
  root.write("mine/.dspack-cache/lock", "");
  root.write("torn/precious", "x");
  root.write("torn/.dspack-cache/journal", "");
  root.write("begun/.dspack-cache/lock", "");
  root.write("begun/.dspack-cache/journal", "0123456789abcdef {\"cac");
  for (const char* name : {"mine", "torn"}) {
    CAPTURE(name);
    const auto opened = format::CacheFolder::open(posix_file_system(), root.path() / name, "http://h/a/");
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind == ErrorKind::conflict);
    CHECK(opened.error().message.find("not empty") != std::string::npos);
    CHECK(format::remove_kept_place(posix_file_system(), root.path() / name).error().kind == ErrorKind::conflict);
    CHECK(root.read(std::string(name) + "/precious") == "x");
  }
  // Of a process that was killed when it had just begun.
  CHECK(format::CacheFolder::open(posix_file_system(), root.path() / "begun", "http://h/a/"));
}

TEST_CASE("cache: a sealed cache loses its working state, and nothing that others put there") {
  const test::TempFolder root;
  make_cache(root, "ours", "http://h/a/");
  root.write("ours/.dspack-cache/precious", "x");
  REQUIRE(format::remove_cache_work(posix_file_system(), root.path() / "ours"));
  CHECK(posix_file_system().list(root.path() / "ours" / ".dspack-cache").value() ==
        std::vector<std::string>{"precious"});
  std::filesystem::remove(root.path() / "ours" / ".dspack-cache" / "precious");
  REQUIRE(format::remove_cache_work(posix_file_system(), root.path() / "ours"));
  CHECK_FALSE(std::filesystem::exists(root.path() / "ours" / ".dspack-cache"));
}

TEST_CASE("cache verb: what is in use is listed so, and not removed") {
  const test::TempFolder root;
  make_cache(root, "ours", "http://h/a/");
  const auto user = format::CacheFolder::open(posix_file_system(), root.path() / "ours", "");
  REQUIRE(user);
  CHECK(listed(root).places.at(0).state == KeptState::in_use);
  const auto removed = format::remove_kept_place(posix_file_system(), root.path() / "ours");
  REQUIRE_FALSE(removed);
  CHECK(removed.error().kind == ErrorKind::conflict);
  CHECK((*user)->text("config.json") == "{}");
}

TEST_CASE("cache verb: a link in a cache is removed, and what it leads to is not") {
  const test::TempFolder root;
  const test::TempFolder other;
  other.write("keep.txt", "keep");
  make_cache(root, "ours", "http://h/a/");
  std::filesystem::create_directory_symlink(other.path(), root.path() / "ours" / "model");
  REQUIRE(format::remove_kept_place(posix_file_system(), root.path() / "ours"));
  CHECK(other.read("keep.txt") == "keep");
}

TEST_CASE("cache verb: names cannot steer a terminal, and JSON stays JSON") {
  format::KeptPlaces kept;
  kept.places.push_back(place("a\x1b[2J\nb", ""));
  kept.strange.push_back({"c\xff\x07", "a symbolic link"});
  const std::string table = format::kept_table(kept, "/r", 1000, 0);
  CHECK(table.find('\x1b') == std::string::npos);
  CHECK(std::ranges::count(table, '\n') == 5);
  const std::string text = format::kept_json(kept, "/r", 1000);
  const auto json = format::parse_json(text, format::kRecordDocument);
  REQUIRE(json);
  CHECK((*json)["models"][0]["state"] == "unreadable");
  CHECK((*json)["left_alone"].size() == 1);
}

TEST_CASE("cache verb: a check names the small file that changed") {
  const test::TempFolder root;
  make_cache(root, "ours", "http://h/a/");
  const auto check = [&] {
    FileCount progress;
    const auto state = format::read_kept_state(posix_file_system(), root.path() / "ours");
    REQUIRE(state);
    auto result = format::check_kept(posix_file_system(), root.path() / "ours", *state, progress, {});
    REQUIRE(result);
    CHECK(progress.total == 1);
    CHECK(progress.done == 1);
    return std::move(*result);
  };
  CHECK(check().damaged == 0);
  CHECK(check().digests == 1);
  root.write("ours/.dspack-cache/origin/config.json", "[]");
  REQUIRE(check().damaged == 1);
  CHECK(check().findings[0].find("config.json") != std::string::npos);
  const auto json = format::parse_json(format::check_json({"ours", "http://h/a/"}, check()), format::kRecordDocument);
  REQUIRE(json);
  CHECK((*json)["damaged"] == 1);
  CHECK((*json)["findings"].size() == 1);
}

TEST_CASE("cache verb: names are read of the journals' beginnings, whatever follows") {
  const test::TempFolder root;
  make_cache(root, "ours", "http://h/a/");
  const std::string journal = root.read("ours/.dspack-cache/journal");
  root.write("ours/.dspack-cache/journal", journal + std::string(1 << 20, 'x') + "\n" + journal);
  const auto names = format::list_kept_names(posix_file_system(), root.path(), {});
  REQUIRE(names);
  REQUIRE(names->ours.size() == 1);
  CHECK(names->ours[0].origin == "http://h/a/");
  CHECK(listed(root).places.at(0).state == KeptState::unreadable);
}

}  // namespace dspack::cache_verb_test
