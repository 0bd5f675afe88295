// The ways in which a file's bytes come into memory: the same bytes and errors for all, and what the page cache holds
// after each.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "format/base/page_buffer.h"
#include "format/base/page_range.h"
#include "format/file_system.h"
#include "tests/support/page_cache.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/temp_folder.h"

namespace dspack::read_modes_test {

using namespace dspack;
using format::ReadMode;

namespace {

constexpr std::array kModes = {ReadMode::buffered, ReadMode::once, ReadMode::direct, ReadMode::mapped};

/// A file on the disk of the working folder: one in memory has no page cache to speak of.
class FileOnDisk {
 public:
  explicit FileOnDisk(size_t bytes) : text_(test::pattern(bytes, 1)) {
    folder_.write("f", text_);
    test::drop_from_page_cache(path());
  }
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] format::Path path() const { return folder_.path() / "f"; }

  /// nullptr: a way of reading that the disk lacks.
  [[nodiscard]] std::unique_ptr<format::ReadFile> open(ReadMode mode) const {
    auto file = format::posix_file_system().open_read_as(path(), mode);
    if (!file && file.error().kind == ErrorKind::unsupported) return nullptr;
    return std::move(file).value();
  }
  [[nodiscard]] uint64_t cached() const {
    return open(ReadMode::buffered)->cached_bytes({0, text_.size()}).value_or(text_.size());
  }

 private:
  test::TempFolder folder_{std::filesystem::current_path()};
  std::string text_;
};

bool reads_right(const format::ReadFile& file, const std::string& text, uint64_t offset, std::span<std::byte> into) {
  return file.read(offset, into) && std::memcmp(into.data(), text.data() + offset, into.size()) == 0;
}

}  // namespace

TEST_CASE("reading: all ways give the same bytes at every alignment, length and end") {
  const FileOnDisk disk((2 << 20) + 3 * kPageBytes + 777);
  const uint64_t end = disk.text().size();
  PageBuffer memory(end + 3 * kPageBytes);
  for (const ReadMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    const auto file = disk.open(mode);
    if (file == nullptr) continue;
    CHECK(file->size_bytes() == end);
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kPageBytes - 1, kPageBytes, 5 * kPageBytes + 511,
                                  end - kPageBytes, end - 778, end - 777, end - 776, end - 1}) {
      for (const uint64_t wanted : {uint64_t{0}, uint64_t{1}, uint64_t{511}, kPageBytes - 1, kPageBytes, kPageBytes + 1,
                                    3 * kPageBytes + 5, uint64_t{1} << 20, end}) {
        const uint64_t bytes = std::min(wanted, end - offset);
        for (const uint64_t shift : {offset % kPageBytes, uint64_t{0}, uint64_t{64}, offset % kPageBytes + 512}) {
          CAPTURE(offset);
          CAPTURE(bytes);
          CAPTURE(shift);
          CHECK(reads_right(*file, disk.text(), offset, memory.bytes().subspan(shift, bytes)));
        }
      }
    }
  }
}

TEST_CASE("reading: nothing outside the place is touched") {
  const FileOnDisk disk(3 * kPageBytes);
  for (const ReadMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    const auto file = disk.open(mode);
    if (file == nullptr) continue;
    PageBuffer memory(4 * kPageBytes);
    std::ranges::fill(memory.bytes(), std::byte{0xa5});
    CHECK(file->read(100, memory.bytes().subspan(100, 2 * kPageBytes)));
    const auto untouched = [](std::byte b) { return b == std::byte{0xa5}; };
    CHECK(std::ranges::all_of(memory.bytes().first(100), untouched));
    CHECK(std::ranges::all_of(memory.bytes().subspan(100 + 2 * kPageBytes), untouched));
  }
}

TEST_CASE("reading: many threads at once") {
  const FileOnDisk disk((1 << 20) + 99);
  for (const ReadMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    const auto file = disk.open(mode);
    if (file == nullptr) continue;
    std::array<bool, 4> right{};
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < right.size(); ++t) {
      threads.emplace_back([&, t] {
        PageBuffer memory(disk.text().size());
        right[t] = true;
        for (uint64_t i = 0; i < 20; ++i) {
          const uint64_t offset = (i * 7919 + t * 104729) % (disk.text().size() - 70'000);
          right[t] = right[t] && reads_right(*file, disk.text(), offset, memory.bytes().subspan(i, 69'999));
        }
      });
    }
    threads.clear();
    CHECK(std::ranges::all_of(right, [](bool r) { return r; }));
  }
}

TEST_CASE(
    "reading: a file that ends too early is corrupt in every way of reading, also when it was cut after opening") {
  for (const ReadMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    const FileOnDisk disk(20 * kPageBytes);
    const auto file = disk.open(mode);
    if (file == nullptr) continue;
    PageBuffer memory(64 * kPageBytes);
    const auto is_corrupt = [&](uint64_t offset, uint64_t bytes) {
      const auto read = file->read(offset, memory.bytes().first(bytes));
      return !read.has_value() && read.error().kind == ErrorKind::corrupt &&
             read.error().message.find(disk.path().string()) != std::string::npos;
    };
    CHECK(is_corrupt(0, 20 * kPageBytes + 1));
    CHECK(is_corrupt(20 * kPageBytes, 1));
    CHECK(is_corrupt(21 * kPageBytes + 7, 10));
    for (const uint64_t end : {10 * kPageBytes, 5 * kPageBytes + 100}) {
      std::filesystem::resize_file(disk.path(), end);
      CHECK(reads_right(*file, disk.text(), 0, memory.bytes().first(end)));
      CHECK(is_corrupt(0, end + 1));
      CHECK(is_corrupt(end - 5, kPageBytes));
      CHECK(is_corrupt(end + kPageBytes, kPageBytes));
      CHECK(is_corrupt(0, 20 * kPageBytes));
    }
  }
}

TEST_CASE("reading: what was not in the page cache is not there after direct, mapped and one-time reads") {
  constexpr uint64_t kBytes = 8 << 20;
  constexpr uint64_t kWarm = 2 << 20;
  PageBuffer memory(kBytes);
  for (const ReadMode mode : {ReadMode::once, ReadMode::direct, ReadMode::mapped}) {
    CAPTURE(static_cast<int>(mode));
    const FileOnDisk disk(kBytes);
    if (disk.cached() != 0) {
      MESSAGE("SKIPPED: this disk's files cannot be emptied from the page cache");
      return;
    }
    const auto file = disk.open(mode);
    if (file == nullptr) continue;
    for (uint64_t at = 0; at < kBytes; at += 1 << 20)
      CHECK(reads_right(*file, disk.text(), at, memory.bytes().subspan(at, 1 << 20)));
    CHECK(disk.cached() <= 64 * kPageBytes);
    // What another program has in the cache stays there, and a second run is fast where the first was.
    test::put_into_page_cache(disk.path(), kWarm);
    // The kernel may take single pages back at any time, or bring some in; a read that dropped what was there would
    // leave next to nothing.
    const uint64_t before = disk.cached();
    REQUIRE(before + 64 * kPageBytes >= kWarm);
    CHECK(file->cached_bytes({0, kWarm}).value_or(0) + 64 * kPageBytes >= kWarm);
    CHECK(file->cached_bytes({0, kWarm}).value_or(0) <= kWarm);
    const uint64_t piece = file->cached_bytes({100, 200}).value_or(1);
    CHECK((piece == 100 || piece == 0));
    CHECK(reads_right(*file, disk.text(), 0, memory.bytes()));
    CHECK(disk.cached() + 64 * kPageBytes >= kWarm);
    CHECK(disk.cached() <= before + 64 * kPageBytes);
  }
}

TEST_CASE("mapping: the bytes at every alignment, pages of its own around them, and nothing of it in the file") {
  const FileOnDisk disk((1 << 20) + 777);
  for (const ReadMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    const auto file = disk.open(mode);
    if (file == nullptr) continue;
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kPageBytes - 1, 3 * kPageBytes + 7}) {
      for (const uint64_t bytes : {uint64_t{1}, kPageBytes, 2 * kPageBytes + 5, disk.text().size() - offset}) {
        auto memory = PageRange::make(bytes + 3 * kMapGrid);
        REQUIRE(memory);
        std::ranges::fill(memory->bytes(), std::byte{0x5a});
        const uint64_t at = kMapGrid + offset % kMapGrid;
        const auto over = memory->bytes().subspan(at, bytes);
        REQUIRE(file->map(offset, over));
        CHECK(std::memcmp(over.data(), disk.text().data() + offset, bytes) == 0);
        CHECK(memory->bytes().front() == std::byte{0x5a});
        CHECK(memory->bytes()[kMapGrid - 1] == std::byte{0x5a});
        over.front() = ~over.front();
      }
    }
    std::vector<std::byte> all(disk.text().size());
    CHECK(reads_right(*file, disk.text(), 0, all));
  }
}

TEST_CASE("mapping: outlives the file, is refused behind its end, and can be replaced") {
  const FileOnDisk disk(kMapGrid + 3 * kPageBytes);
  auto memory = PageRange::make(2 * kMapGrid);
  REQUIRE(memory);
  const auto all = memory->bytes().first(disk.text().size());
  {
    const auto file = disk.open(ReadMode::buffered);
    CHECK(file->map(0, {}));
    CHECK(file->map(kMapGrid, all).error().kind == ErrorKind::corrupt);
    REQUIRE(file->map(0, all));
    REQUIRE(file->map(kMapGrid, all.first(3 * kPageBytes)));
  }
  CHECK(std::memcmp(all.data(), disk.text().data() + kMapGrid, 3 * kPageBytes) == 0);
  CHECK(std::memcmp(all.data() + kMapGrid, disk.text().data() + kMapGrid, 3 * kPageBytes) == 0);
  std::filesystem::resize_file(disk.path(), kPageBytes);
  CHECK(disk.open(ReadMode::buffered)->map(0, all).error().kind == ErrorKind::corrupt);
  CHECK(PageRange::make(UINT64_MAX).error().kind == ErrorKind::budget);
}

TEST_CASE("reading: an empty file, a missing one and a folder") {
  const test::TempFolder folder(std::filesystem::current_path());
  folder.write("empty", "");
  for (const ReadMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    format::FileSystem& files = format::posix_file_system();
    CHECK(files.open_read_as(folder.path() / "none", mode).error().kind == ErrorKind::not_found);
    const auto as_file = files.open_read_as(folder.path(), mode);
    REQUIRE_FALSE(as_file.has_value());
    const auto file = files.open_read_as(folder.path() / "empty", mode);
    if (!file) continue;
    CHECK((*file)->size_bytes() == 0);
    CHECK((*file)->read(0, {}));
    std::byte one{};
    CHECK((*file)->read(0, {&one, 1}).error().kind == ErrorKind::corrupt);
  }
  CHECK(format::open_file_limit() >= 20);
}

}  // namespace dspack::read_modes_test
