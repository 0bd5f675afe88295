#include "format/compressed/expanded_file.h"

#include <doctest/doctest.h>
#include <zstd.h>

#include <algorithm>

#include "format/base/page_buffer.h"

namespace dspack::expanded_file_test {

using namespace dspack;
using format::CompressedFile;

namespace {

constexpr uint64_t kMiB = format::kMaxFrameBytes;

/// A compressed file in memory, which counts what is asked of it and hands bytes on in pieces of `piece_bytes`.
struct Stored {
  std::vector<std::byte> raw;
  std::vector<std::byte> bytes;
  std::shared_ptr<CompressedFile> file = std::make_shared<CompressedFile>();
  uint64_t piece_bytes = 100'000;
  uint64_t read_bytes = 0;
  uint64_t requests = 0;
  uint64_t longest = 0;

  [[nodiscard]] std::span<const std::byte> taken(uint64_t offset, uint64_t size) {
    ++requests;
    read_bytes += size;
    longest = std::max(longest, size);
    return std::span(bytes).subspan(offset, size);
  }
};

class MemoryFile final : public format::ReadFile {
 public:
  explicit MemoryFile(Stored& stored) : stored_(stored) {}
  uint64_t size_bytes() const override { return stored_.bytes.size(); }
  Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
    CHECK(offset % kPageBytes == 0);  // as direct reads want it
    CHECK(reinterpret_cast<uintptr_t>(into.data()) % kPageBytes == 0);
    std::ranges::copy(stored_.taken(offset, into.size()), into.begin());
    return {};
  }

 private:
  Stored& stored_;
};

class MemorySource final : public format::ByteSource {
 public:
  explicit MemorySource(Stored& stored) : stored_(stored) {}
  uint64_t size_bytes() const override { return stored_.bytes.size(); }
  const std::string& version() const override { return version_; }
  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token /*stop*/) override {
    std::ranges::copy(stored_.taken(offset, into.size()), into.begin());
    return {};
  }
  Result<void> stream(ByteRange range, const format::ByteSink& sink, std::stop_token /*stop*/) override {
    auto bytes = stored_.taken(range.begin, range.size());
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min<uint64_t>(bytes.size(), stored_.piece_bytes));
      TRY(sink(piece));
      bytes = bytes.subspan(piece.size());
    }
    return {};
  }

 private:
  Stored& stored_;
  std::string version_ = "1";
};

Stored stored_file(const std::vector<uint64_t>& tensors, uint64_t size_bytes) {
  Stored made;
  uint32_t state = 7;
  for (uint64_t i = 0; i < size_bytes; ++i) {
    state = state * 1'664'525 + 1'013'904'223;
    made.raw.push_back(static_cast<std::byte>((state >> 24) & 0x3f));
  }
  const std::vector<uint64_t> cuts = format::frame_cuts(tensors, size_bytes);
  format::CompressedForm form;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<std::byte> frame(ZSTD_compressBound(cuts[i + 1] - cuts[i]));
    frame.resize(ZSTD_compress(frame.data(), frame.size(), made.raw.data() + cuts[i], cuts[i + 1] - cuts[i], 1));
    form.frames.push_back(static_cast<uint32_t>(frame.size()));
    made.bytes.insert(made.bytes.end(), frame.begin(), frame.end());
  }
  form.size_bytes = made.bytes.size() + format::seek_table_bytes(form.frames.size());
  made.file->raw_bytes = size_bytes;
  made.file->stored_bytes = form.size_bytes;
  made.file->table = format::frame_table(cuts, form).value();
  return made;
}

const std::vector<uint64_t> kTensors = {4096, 4096 + 5 * kMiB, 4096 + 5 * kMiB + 300};
constexpr uint64_t kSize = 13 * kMiB + 77;

std::vector<ByteRange> ranges() {
  return {{0, kSize}, {0, 1}, {4095, 4097}, {kMiB, 5 * kMiB}, {5 * kMiB, 5 * kMiB + 5000}, {kSize - 1, kSize}, {9, 9}};
}

bool is_part(const std::vector<std::byte>& got, const Stored& stored, ByteRange range) {
  return std::ranges::equal(got, std::span(stored.raw).subspan(range.begin, range.size()));
}

}  // namespace

TEST_CASE("expanded file: every range has the raw bytes, read from a file or a source in whatever pieces") {
  Stored stored = stored_file(kTensors, kSize);
  const auto file = make_expanded_file(std::make_unique<MemoryFile>(stored), stored.file, "here");
  const auto source = make_expanded_source(std::make_unique<MemorySource>(stored), stored.file, "here");
  CHECK(file->size_bytes() == kSize);
  CHECK(source->size_bytes() == kSize);
  for (const ByteRange range : ranges()) {
    CAPTURE(range.begin);
    CAPTURE(range.end);
    std::vector<std::byte> got(range.size());
    REQUIRE(file->read(range.begin, got).has_value());
    CHECK(is_part(got, stored, range));
    for (const uint64_t piece : {uint64_t{100'000'000}, uint64_t{4096}, uint64_t{99'991}}) {
      stored.piece_bytes = piece;
      std::ranges::fill(got, std::byte{});
      REQUIRE(source->read(range.begin, got, {}).has_value());
      CHECK(is_part(got, stored, range));
      std::vector<std::byte> streamed;
      const auto keep = [&](std::span<const std::byte> bytes) -> Result<void> {
        CHECK(bytes.size() <= kMiB);
        streamed.insert(streamed.end(), bytes.begin(), bytes.end());
        return {};
      };
      REQUIRE(source->stream(range, keep, {}).has_value());
      CHECK(streamed == got);
    }
  }
}

TEST_CASE("expanded file: readers whose pieces end at multiples of 1 MiB need no frame twice, nor more requests") {
  Stored stored = stored_file(kTensors, kSize);
  const uint64_t frames_bytes = stored.file->table.stored.back();
  for (const bool distant : {false, true}) {
    CAPTURE(distant);
    stored.read_bytes = stored.requests = 0;
    const auto file = make_expanded_file(std::make_unique<MemoryFile>(stored), stored.file, "here");
    const auto source = make_expanded_source(std::make_unique<MemorySource>(stored), stored.file, "here");
    uint64_t pieces = 0;
    for (uint64_t at = 0; at < kSize; at += 4 * kMiB, ++pieces) {
      std::vector<std::byte> got(std::min(4 * kMiB, kSize - at));
      REQUIRE((distant ? source->read(at, got, {}) : file->read(at, got)).has_value());
    }
    // From a disk in whole pages, frame by frame; across a network just what is needed, in one request a piece.
    CHECK(stored.read_bytes >= frames_bytes);
    CHECK(stored.read_bytes <= frames_bytes + (distant ? 0 : 2 * kPageBytes * stored.file->table.stored.size()));
    CHECK((!distant || stored.requests == pieces));
  }
}

TEST_CASE("expanded file: however much is asked for, no more is read at once than reading_bytes allows") {
  Stored stored = stored_file(kTensors, kSize);
  const auto file = make_expanded_file(std::make_unique<MemoryFile>(stored), stored.file, "here");
  std::vector<std::byte> all(kSize);
  REQUIRE(file->read(0, all).has_value());
  CHECK(stored.longest + kMiB < reading_bytes(stored.file->table));
  CHECK(reading_bytes(stored.file->table) < 3 * kMiB);
  const Stored small = stored_file({4096}, 20'000);  // a small model holds little
  CHECK(reading_bytes(small.file->table) < 20'000 + 20'000 + kMiB / 2);
}

TEST_CASE("expanded file: damaged frames and ranges beyond the end are corrupt, and named") {
  Stored stored = stored_file(kTensors, kSize);
  stored.bytes[stored.file->table.stored[3] + 1] ^= std::byte{0xff};  // of a frame's magic number
  const auto file = make_expanded_file(std::make_unique<MemoryFile>(stored), stored.file, "here");
  const auto source = make_expanded_source(std::make_unique<MemorySource>(stored), stored.file, "here");
  std::vector<std::byte> got(kSize);
  for (const Result<void>& read : {file->read(0, got), source->read(0, got, {}), file->read(1, got),
                                   source->read(kSize, got, {}), file->read(UINT64_MAX, got)}) {
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().kind == ErrorKind::corrupt);
    CHECK(read.error().message.starts_with("here"));
  }
}

}  // namespace dspack::expanded_file_test
