#include <doctest/doctest.h>

#include "format/file_system.h"
#include "tests/support/temp_folder.h"

using namespace dspack;
using format::OpenMode;
using format::unsafe_path_reason;

TEST_CASE("paths: what would leave its folder is refused with a reason") {
  for (const char* path :
       {"", "/etc/passwd", "..", "a/../b", "../a", "a/..", "a//b", "a/", "./a", "a/.", "a\\b", "a\nb", "\x7f"}) {
    CAPTURE(path);
    CHECK(unsafe_path_reason(path).has_value());
  }
  CHECK(unsafe_path_reason(std::string_view("a\0b", 3)).has_value());
  for (const char* path : {"a", "a/b.c", "model/layers/000/dense.safetensors", "..a", "a..", "...", "a b", "é"}) {
    CAPTURE(path);
    CHECK_FALSE(unsafe_path_reason(path).has_value());
  }
}

TEST_CASE("files: positional writes and reads, and an end that comes too early") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  {
    const auto file = files.open_write(folder.path() / "f", OpenMode::truncate).value();
    CHECK(file->write(3, format::as_bytes("def")));
    CHECK(file->write(0, format::as_bytes("abc")));
    CHECK(file->sync());
  }
  const auto file = files.open_read(folder.path() / "f").value();
  CHECK(file->size_bytes() == 6);
  std::array<std::byte, 4> bytes{};
  CHECK(file->read(2, bytes));
  CHECK(static_cast<char>(bytes[0]) == 'c');
  const auto past = file->read(4, bytes);
  REQUIRE_FALSE(past.has_value());
  CHECK(past.error().kind == ErrorKind::corrupt);
  CHECK(past.error().message.find("/f") != std::string::npos);
}

TEST_CASE("files: errors tell kind and place") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  CHECK(files.open_read(folder.path() / "none").error().kind == ErrorKind::not_found);
  CHECK(files.open_read(folder.path()).error().kind == ErrorKind::invalid);
  CHECK(files.open_write(folder.path() / "none/x", OpenMode::keep).error().kind == ErrorKind::not_found);
  CHECK_FALSE(files.stat(folder.path() / "none").value().has_value());
  CHECK(files.stat(folder.path()).value()->is_directory);
  CHECK(files.remove_tree(folder.path() / "none").has_value());
  folder.write("big", std::string(100, 'x'));
  CHECK(format::read_text(files, folder.path() / "big", 99).error().kind == ErrorKind::budget);
  CHECK(format::read_text(files, folder.path() / "big", 100).value().size() == 100);
  CHECK(files.free_bytes(folder.path() / "not/yet/there").value() > 0);
}

TEST_CASE("files: a lock is exclusive and ends with its holder") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  {
    const auto first = files.lock(folder.path() / "lock");
    REQUIRE(first.has_value());
    CHECK(files.lock(folder.path() / "lock").error().kind == ErrorKind::conflict);
  }
  CHECK(files.lock(folder.path() / "lock").has_value());
}

TEST_CASE("files: a sealed write replaces the old file and leaves no temporary") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  folder.write("m.json", "old");
  CHECK(format::write_sealed(files, folder.path() / "m.json", "new"));
  CHECK(folder.read("m.json") == "new");
  CHECK(files.list(folder.path()).value() == std::vector<std::string>{"m.json"});
}
