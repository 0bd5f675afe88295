#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "format/base/page_buffer.h"
#include "format/file_system.h"
#include "tests/support/temp_folder.h"

namespace dspack::file_system_test {

using namespace dspack;
using format::OpenMode;
using format::unsafe_path_reason;

TEST_CASE("paths: what would leave its folder is refused with a reason") {
  for (const char* path : {"",
                           "/etc/passwd",
                           "..",
                           "a/../b",
                           "../a",
                           "a/..",
                           "a//b",
                           "a/",
                           "./a",
                           "a/.",
                           "a\\b",
                           "a\nb",
                           "\x7f",
                           "a\xc2\x9b"
                           "b",
                           "\xc2\x80",
                           ".git/config",
                           "a/.b/c",
                           ".reshard/part/x",
                           ".dspack-cache/lock",
                           ".x",
                           "..a",
                           "..."}) {
    CAPTURE(path);
    CHECK(unsafe_path_reason(path).has_value());
  }
  CHECK(unsafe_path_reason(std::string_view("a\0b", 3)).has_value());
  for (const char* path : {"a", "a/b.c", "model/layers/000/dense.safetensors", "a..", "a.b.", "a b", "é", "\xc2\xa0"}) {
    CAPTURE(path);
    CHECK_FALSE(unsafe_path_reason(path).has_value());
  }
}

TEST_CASE("paths: a listing may have hidden names, and nothing else that leads elsewhere") {
  using format::HiddenNames;
  for (const char* path : {".gitattributes", ".git/config", "a/.b", "..a"}) {
    CAPTURE(path);
    CHECK_FALSE(unsafe_path_reason(path, HiddenNames::accepted).has_value());
  }
  for (const char* path : {".", "..", ".a/..", "/.a", ".a//b", ".a\x1b"}) {
    CAPTURE(path);
    CHECK(unsafe_path_reason(path, HiddenNames::accepted).has_value());
  }
}

TEST_CASE("files: nothing is written, locked or created through a link") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  folder.write("target", "precious");
  for (const char* target : {"target", "nowhere"}) {
    CAPTURE(target);
    const format::Path link = folder.path() / "link";
    REQUIRE(files.make_link(target, link));
    CHECK(files.open_write(link, OpenMode::keep).error().kind == ErrorKind::invalid);
    CHECK(files.open_write(link, OpenMode::truncate).error().kind == ErrorKind::invalid);
    CHECK(files.open_write(link, OpenMode::create).error().kind == ErrorKind::conflict);
    CHECK(files.lock(link, format::LockKind::exclusive).error().kind == ErrorKind::invalid);
    REQUIRE(files.remove_tree(link));
  }
  CHECK(format::read_text(files, folder.path() / "target", 100).value() == "precious");
  CHECK_FALSE(std::filesystem::exists(folder.path() / "nowhere"));
  CHECK(files.open_write(folder.path() / "target", OpenMode::create).error().kind == ErrorKind::conflict);
  CHECK(files.open_write(folder.path() / "new", OpenMode::create).has_value());
}

TEST_CASE("files: what lies in a temporary's place is replaced, but for a folder") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  folder.write("target", "precious");
  const format::Path path = folder.path() / "f";
  REQUIRE(files.make_link("target", format::temporary_of(path)));
  CHECK(format::write_sealed(files, path, "one"));
  CHECK(format::read_text(files, path, 100).value() == "one");
  CHECK(format::read_text(files, folder.path() / "target", 100).value() == "precious");
  CHECK_FALSE(std::filesystem::is_symlink(path));
  folder.write(".f.tmp", "left by a run that was killed");
  CHECK(format::write_sealed(files, path, "two"));
  CHECK(format::read_text(files, path, 100).value() == "two");
  REQUIRE(files.make_folders(folder.path() / ".f.tmp/mine"));
  CHECK(format::write_sealed(files, path, "three").error().kind == ErrorKind::conflict);
  CHECK(std::filesystem::exists(folder.path() / ".f.tmp/mine"));
  CHECK(format::read_text(files, path, 100).value() == "two");
}

TEST_CASE("files: descriptors of this process are known by the system's names for them") {
  CHECK(format::named_descriptor("/dev/stdout") == 1);
  CHECK(format::named_descriptor("/dev//stderr") == 2);
  CHECK(format::named_descriptor("/dev/fd/63") == 63);
  CHECK(format::named_descriptor("/proc/self/fd/7") == 7);
  for (const char* path : {"stdout", "/dev/null", "/dev/fd/", "/dev/fd/x", "/dev/fd/1x", "/dev/fd/-1", "/dev/fd/1/x",
                           "/dev/fd/99999999999"}) {
    CAPTURE(path);
    CHECK_FALSE(format::named_descriptor(path).has_value());
  }
}

TEST_CASE("files: a pipe is written in order, and is not replaced") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  const format::Path pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(format::is_stream(files, pipe).value());
  CHECK(format::is_stream(files, "/dev/null").value());
  CHECK_FALSE(format::is_stream(files, folder.path() / "none").value());
  CHECK_FALSE(format::is_stream(files, folder.path()).value());
  const auto file = files.open_write(pipe, OpenMode::truncate).value();
  CHECK(file->write(0, format::as_bytes("ab")));
  CHECK(file->resize(0));
  CHECK(file->write(2, format::as_bytes("cd")));
  CHECK(file->sync());
  CHECK(file->write(0, format::as_bytes("e")).error().kind == ErrorKind::unsupported);
  CHECK(std::filesystem::is_fifo(pipe));
  const auto null = files.open_write("/dev/null", OpenMode::keep).value();
  CHECK(null->write(7, format::as_bytes("x")));
  CHECK(null->write(0, format::as_bytes("y")));
}

TEST_CASE("folders: a link below the output folder is refused; the output folder itself may be one") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  REQUIRE(files.make_folders(folder.path() / "real"));
  REQUIRE(files.make_folders(folder.path() / "elsewhere"));
  REQUIRE(files.make_link("real", folder.path() / "out"));
  for (const char* name : {"out", "out/"}) {
    format::DurableFolders folders(files, folder.path() / name);
    CHECK(folders.make(folder.path() / "out/a/b"));
    REQUIRE(files.make_link(folder.path() / "elsewhere", folder.path() / "out/link"));
    for (const char* below : {"out/link", "out/link/x", "out/link/x/y"})
      CHECK(folders.make(folder.path() / below).error().kind == ErrorKind::invalid);
    REQUIRE(files.remove_tree(folder.path() / "out/link"));
  }
  CHECK(std::filesystem::is_empty(folder.path() / "elsewhere"));
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

TEST_CASE("files: large writes reach their place whatever their alignment in memory and in the file") {
  // On the working folder's disk, since a folder in memory has no direct writes.
  const test::TempFolder folder(std::filesystem::current_path());
  format::FileSystem& files = format::posix_file_system();
  constexpr size_t kBytes = (1 << 20) + 777;
  PageBuffer memory(kBytes + 2 * kPageBytes);
  for (size_t i = 0; i < memory.bytes().size(); ++i)
    memory.bytes()[i] = static_cast<std::byte>((i * 2654435761U) >> 11);
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kPageBytes, 3 * kPageBytes + 5, 7 * kPageBytes - 1}) {
    for (const uint64_t shift : {uint64_t{0}, offset % kPageBytes, uint64_t{512}}) {
      const auto piece = std::span<const std::byte>(memory.bytes()).subspan(shift, kBytes);
      {
        const auto file = files.open_write(folder.path() / "f", OpenMode::truncate).value();
        CHECK(file->resize(offset + kBytes + 100));
        CHECK(file->write(offset, piece));
        CHECK(file->sync());
      }
      const auto file = files.open_read(folder.path() / "f").value();
      std::vector<std::byte> back(offset + kBytes + 100, std::byte{1});
      CHECK(file->read(0, back));
      CHECK(std::equal(piece.begin(), piece.end(), back.begin() + static_cast<std::ptrdiff_t>(offset)));
      CHECK(std::all_of(back.begin(), back.begin() + static_cast<std::ptrdiff_t>(offset),
                        [](std::byte b) { return b == std::byte{0}; }));
      CHECK(std::all_of(back.end() - 100, back.end(), [](std::byte b) { return b == std::byte{0}; }));
    }
  }
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
  const auto free_files = files.free_files(folder.path() / "not/yet/there");
  REQUIRE(free_files.has_value());
  CHECK(free_files->value_or(1) > 0);
}

TEST_CASE("files: a lock is held by one, or shared by many, and ends with its holders") {
  using format::LockKind;
  const test::TempFolder folder;
  const format::Path path = folder.path() / "lock";
  format::FileSystem& files = format::posix_file_system();
  {
    const auto alone = files.lock(path, LockKind::exclusive);
    REQUIRE(alone.has_value());
    CHECK(files.lock(path, LockKind::exclusive).error().kind == ErrorKind::conflict);
    CHECK(files.lock(path, LockKind::shared).error().kind == ErrorKind::conflict);
  }
  {
    const auto one = files.lock(path, LockKind::shared);
    REQUIRE(one.has_value());
    { CHECK(files.lock(path, LockKind::shared).has_value()); }
    CHECK(files.lock(path, LockKind::exclusive).error().kind == ErrorKind::conflict);
  }
  CHECK(files.lock(path, LockKind::exclusive).has_value());
}

TEST_CASE("files: a link says what it was made with, wherever that leads, and is removed without it") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  const format::Path link = folder.path() / "link";
  CHECK(files.read_link(link).value() == std::nullopt);
  REQUIRE(files.make_link("../nowhere/x", link));
  CHECK(files.read_link(link).value() == format::Path("../nowhere/x"));
  CHECK(files.stat(link).value() == std::nullopt);
  const auto again = files.make_link("y", link);
  REQUIRE_FALSE(again);
  CHECK(again.error().kind == ErrorKind::conflict);
  REQUIRE(files.remove_tree(link));
  REQUIRE(files.make_folders(folder.path() / "target" / "inner"));
  REQUIRE(files.make_link("target", link));
  CHECK(files.stat(link).value()->is_directory);
  REQUIRE(files.remove_tree(link));
  CHECK(files.stat(folder.path() / "target" / "inner").value()->is_directory);
  CHECK(files.read_link(folder.path() / "target").value() == std::nullopt);
}

TEST_CASE("files: removing takes a file or a link, never a folder, and of folders only empty ones") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  folder.write("full/precious", "x");
  folder.write("file", "x");
  REQUIRE(files.make_link("full", folder.path() / "link"));
  REQUIRE(files.make_folders(folder.path() / "empty"));
  CHECK(files.remove_file(folder.path() / "full").error().kind == ErrorKind::conflict);
  CHECK(files.remove_file(folder.path() / "empty").error().kind == ErrorKind::conflict);
  CHECK(files.remove_file(folder.path() / "link"));
  CHECK(files.remove_file(folder.path() / "file"));
  CHECK(files.remove_file(folder.path() / "file"));
  CHECK(files.remove_empty_folder(folder.path() / "full"));
  CHECK(files.remove_empty_folder(folder.path() / "empty"));
  CHECK(files.remove_empty_folder(folder.path() / "empty"));
  CHECK(files.list(folder.path()).value() == std::vector<std::string>{"full"});
  CHECK(folder.read("full/precious") == "x");
}

TEST_CASE("files: what others can have written, or a link leads to, is not read where that is asked for") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  folder.write("file", "mine");
  const format::Path path = folder.path() / "file";
  const auto refused = [&](const format::Path& file, const char* word) {
    const auto opened = files.open_read_own(file);
    REQUIRE_FALSE(opened);
    CHECK(opened.error().kind == ErrorKind::invalid);
    CHECK_MESSAGE(opened.error().message.find(word) != std::string::npos, opened.error().message);
    CHECK(opened.error().message.starts_with(file.string()));
  };
  REQUIRE(files.open_read_own(path));
  CHECK(files.stat(path).value()->writers == format::Writers::user);
  for (const mode_t mode : {0620, 0602, 0666}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(files.stat(path).value()->writers == format::Writers::others);
    refused(path, "chmod go-w");
  }
  REQUIRE(::chmod(path.c_str(), 0644) == 0);
  REQUIRE(files.open_read_own(path));
  REQUIRE(files.make_link("file", folder.path() / "link"));
  refused(folder.path() / "link", "symbolic link");
  refused(folder.path(), "folder");
  CHECK(files.open_read_own(folder.path() / "nothing").error().kind == ErrorKind::not_found);
  if (::geteuid() != 0) return;
  constexpr uid_t kSomebody = 12345;
  REQUIRE(::chown(path.c_str(), kSomebody, kSomebody) == 0);
  CHECK(files.stat(path).value()->writers == format::Writers::another_user);
  refused(path, "another user");
}

TEST_CASE("files: what is made for its owner is never open to others, whatever lay in its place") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  const format::Path path = folder.path() / "f";
  const mode_t before = ::umask(0);
  folder.write("f", "old");
  folder.write(".f.tmp", "left by a run that was killed");
  const auto written = format::write_sealed(files, path, "new", format::Access::owner);
  ::umask(before);
  REQUIRE(written);
  struct ::stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(folder.read("f") == "new");
}

TEST_CASE("files: a sealed write replaces the old file and leaves no temporary") {
  const test::TempFolder folder;
  format::FileSystem& files = format::posix_file_system();
  folder.write("m.json", "old");
  CHECK(format::write_sealed(files, folder.path() / "m.json", "new"));
  CHECK(folder.read("m.json") == "new");
  CHECK(files.list(folder.path()).value() == std::vector<std::string>{"m.json"});
}

}  // namespace dspack::file_system_test
