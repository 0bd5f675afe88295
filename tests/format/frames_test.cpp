#include <doctest/doctest.h>
#include <zstd.h>

#include <algorithm>
#include <numeric>

#include "format/compressed/frames.h"
#include "format/file_system.h"

namespace dspack::frames_test {

using namespace dspack;
using format::CompressedForm;
using format::FrameTable;

namespace {

constexpr uint64_t kMiB = format::kMaxFrameBytes;

/// A file of `size_bytes` in frames, with its bytes.
struct Sample {
  std::vector<std::byte> raw;
  std::vector<std::byte> stored;
  FrameTable table;
};

Sample sample(const std::vector<uint64_t>& tensors, uint64_t size_bytes) {
  Sample made;
  for (uint64_t i = 0; i < size_bytes; ++i)
    made.raw.push_back(static_cast<std::byte>((i * i / 7) & 0xff));
  const std::vector<uint64_t> cuts = format::frame_cuts(tensors, size_bytes);
  CompressedForm form;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<std::byte> frame(ZSTD_compressBound(cuts[i + 1] - cuts[i]));
    frame.resize(ZSTD_compress(frame.data(), frame.size(), made.raw.data() + cuts[i], cuts[i + 1] - cuts[i], 1));
    form.frames.push_back(static_cast<uint32_t>(frame.size()));
    made.stored.insert(made.stored.end(), frame.begin(), frame.end());
  }
  form.size_bytes = made.stored.size() + format::seek_table_bytes(form.frames.size());
  made.table = format::frame_table(cuts, form).value();
  return made;
}

}  // namespace

TEST_CASE("frames: cut at the data, at every tensor, and at every multiple of 1 MiB") {
  CHECK(format::frame_cuts(std::vector<uint64_t>{4096, 4096 + 100}, 4096 + 200) ==
        std::vector<uint64_t>{0, 4096, 4196, 4296});
  CHECK(format::frame_cuts(std::vector<uint64_t>{4096}, 4096 + 2 * kMiB + 1) ==
        std::vector<uint64_t>{0, 4096, kMiB, 2 * kMiB, 4096 + 2 * kMiB + 1});
  CHECK(format::frame_cuts(std::vector<uint64_t>{4096}, 4 * kMiB) ==
        std::vector<uint64_t>{0, 4096, kMiB, 2 * kMiB, 3 * kMiB, 4 * kMiB});
  CHECK(format::frame_cuts(std::vector<uint64_t>{kMiB, 2 * kMiB}, 2 * kMiB + 5) ==
        std::vector<uint64_t>{0, kMiB, 2 * kMiB, 2 * kMiB + 5});
  // Tensors without bytes make no frame.
  CHECK(format::frame_cuts(std::vector<uint64_t>{4096, 4096, 5000}, 5000) == std::vector<uint64_t>{0, 4096, 5000});
}

TEST_CASE("frames: any range of the raw bytes comes out of the frames that hold it") {
  const Sample made = sample({4096, 4096 + 1'500'000, 4096 + 1'500'300}, 4096 + 3'000'000);
  const uint64_t size = made.raw.size();
  for (const ByteRange raw :
       {ByteRange{0, size}, ByteRange{0, 1}, ByteRange{4095, 4097}, ByteRange{4096, 4096 + kMiB},
        ByteRange{kMiB, 2 * kMiB}, ByteRange{1'500'000, 1'600'000}, ByteRange{size - 1, size}, ByteRange{77, 77}}) {
    CAPTURE(raw.begin);
    CAPTURE(raw.end);
    std::vector<std::byte> out(raw.size());
    const format::FrameRun run = format::frames_of(made.table, raw);
    for (size_t i = run.first; i < run.last; ++i) {
      const auto frame =
          std::span(made.stored).subspan(made.table.stored[i], made.table.stored[i + 1] - made.table.stored[i]);
      REQUIRE(format::expand_frame(made.table, i, frame, raw, out).has_value());
    }
    CHECK(std::equal(out.begin(), out.end(), made.raw.begin() + static_cast<std::ptrdiff_t>(raw.begin)));
  }
  CHECK(format::frames_of(made.table, {77, 77}).first == format::frames_of(made.table, {77, 77}).last);
}

TEST_CASE("frames: bytes that are none, and frames of another length, are corrupt") {
  const Sample made = sample({4096}, 10'000);
  std::vector<std::byte> out(made.raw.size());
  const ByteRange all{0, made.raw.size()};
  const std::vector<std::byte> garbage(50, std::byte{7});
  const auto broken = format::expand_frame(made.table, 0, garbage, all, out);
  REQUIRE_FALSE(broken.has_value());
  CHECK(broken.error().kind == ErrorKind::corrupt);
  // The second frame in place of the first: whole, and of other bytes.
  const auto second = std::span(made.stored).subspan(made.table.stored[1], made.table.stored[2] - made.table.stored[1]);
  const auto exchanged = format::expand_frame(made.table, 0, second, all, out);
  REQUIRE_FALSE(exchanged.has_value());
  CHECK(exchanged.error().kind == ErrorKind::corrupt);
}

TEST_CASE("frames: a list that does not fit the file is refused") {
  const std::vector<uint64_t> cuts{0, 4096, 8192};
  CompressedForm form{.size_bytes = 30 + format::seek_table_bytes(2), .sha256 = {}, .frames = {10, 20}};
  REQUIRE(format::frame_table(cuts, form).has_value());
  form.frames = {10};
  CHECK(format::frame_table(cuts, form).error().kind == ErrorKind::invalid);
  form.frames = {10, 21};
  CHECK(format::frame_table(cuts, form).error().kind == ErrorKind::invalid);
}

TEST_CASE("frames: the table is that of zstd's seekable format") {
  const std::vector<uint64_t> cuts{0, 4096, 4196};
  const std::vector<uint32_t> frames{300, 90};
  const std::string table = format::seek_table(cuts, frames);
  REQUIRE(table.size() == format::seek_table_bytes(2));
  const auto u32 = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 4; i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(table[at + i]);
    return value;
  };
  CHECK(u32(0) == 0x184D2A5E);
  CHECK(u32(4) == table.size() - 8);
  CHECK(u32(8) == 300);
  CHECK(u32(12) == 4096);
  CHECK(u32(16) == 90);
  CHECK(u32(20) == 100);
  CHECK(u32(24) == 2);
  CHECK(table[28] == 0);
  CHECK(u32(29) == 0x8F92EAB1);
}

}  // namespace dspack::frames_test
