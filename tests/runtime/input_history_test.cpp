#include "runtime/cli/input_history.h"

#include <doctest/doctest.h>

#include "tests/support/temp_folder.h"

namespace dspack::runtime::input_history_test {

TEST_CASE("input history: entries with line feeds and backslashes come back whole") {
  const std::vector<std::string> entries{"one", "two\nlines", "a \\n b\\", "\xe6\x97\xa5"};
  CHECK(parse_history(history_text(entries)) == entries);
}

TEST_CASE("input history: what could steer a terminal is left out") {
  CHECK(parse_history("good\n\x1b[2J\nbroken\xff\n\nlast") == std::vector<std::string>{"good", "last"});
}

TEST_CASE("input history: the newest are kept, in number and in bytes") {
  std::vector<std::string> many(InputHistory::kMaxEntries + 10, "x");
  many.back() = "newest";
  CHECK(parse_history(history_text(many)).size() == InputHistory::kMaxEntries);
  CHECK(parse_history(history_text(many)).back() == "newest");
  const std::vector<std::string> large(200, std::string(InputHistory::kMaxEntryBytes, 'x'));
  CHECK(history_text(large).size() <= InputHistory::kMaxBytes);
  CHECK(parse_history(history_text(large)).size() > 60);
}

TEST_CASE("input history: two chats add to one file, and only its owner may read it") {
  const test::TempFolder folder;
  const format::Path file = folder.path() / "state" / "history";
  InputHistory one(format::posix_file_system(), file);
  InputHistory two(format::posix_file_system(), file);
  REQUIRE(one.add("first"));
  REQUIRE(two.add("second"));
  REQUIRE(one.add("third"));
  REQUIRE(one.add("third"));
  CHECK(*two.read() == std::vector<std::string>{"first", "second", "third"});
  CHECK((std::filesystem::status(file).permissions() & std::filesystem::perms::all) ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
  {
    const auto lock = format::posix_file_system().lock(format::Path(file) += ".lock", format::LockKind::exclusive);
    REQUIRE(lock);
    REQUIRE(one.add("while another writes"));
    CHECK(one.read()->size() == 3);
  }
  REQUIRE(one.add("after"));
  CHECK(one.read()->size() == 5);
}

}  // namespace dspack::runtime::input_history_test
