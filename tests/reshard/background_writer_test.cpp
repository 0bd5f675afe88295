// The thread that writes while the next bytes are collected: same bytes in the same order, and no error is lost.
#include "reshard/run/tensor_writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

namespace dspack::reshard::background_writer_test {
namespace {

/// Keeps what is written, and by whom.
class KeptFile final : public format::WriteFile {
 public:
  Result<void> write(uint64_t offset, std::span<const std::byte> bytes) override {
    while (is_held)
      std::this_thread::yield();
    if (++writes == failing_write) return Error{ErrorKind::io, "no space left on device"};
    by_another_thread = by_another_thread || std::this_thread::get_id() != owner;
    text.resize(std::max<size_t>(text.size(), offset + bytes.size()));
    for (size_t i = 0; i < bytes.size(); ++i)
      text[offset + i] = static_cast<char>(bytes[i]);
    return {};
  }
  Result<void> resize(uint64_t /*bytes*/) override { return {}; }
  Result<void> sync() override { return {}; }

  std::atomic<bool> is_held = false;
  int failing_write = 0;
  int writes = 0;
  bool by_another_thread = false;
  std::thread::id owner = std::this_thread::get_id();
  std::string text;
};

Result<void> write_piece(BackgroundWriter& writer, KeptFile& file, uint64_t offset, char byte, bool more) {
  std::ranges::fill(writer.buffer(), static_cast<std::byte>(byte));
  return writer.write(file, offset, writer.buffer(), more);
}

}  // namespace

TEST_CASE("background writer: the next buffer is filled while the one before is being written") {
  KeptFile file;
  BackgroundWriter writer;
  file.is_held = true;
  REQUIRE(write_piece(writer, file, 0, 'a', true).has_value());
  std::ranges::fill(writer.buffer(), std::byte{'b'});  // not the buffer under way
  file.is_held = false;
  REQUIRE(writer.write(file, kStagingBytes, writer.buffer(), true).has_value());
  REQUIRE(write_piece(writer, file, 2 * kStagingBytes, 'c', false).has_value());
  CHECK(file.text ==
        std::string(kStagingBytes, 'a') + std::string(kStagingBytes, 'b') + std::string(kStagingBytes, 'c'));
  CHECK(file.by_another_thread);
}

TEST_CASE("background writer: the caller writes what is alone") {
  KeptFile file;
  BackgroundWriter writer;
  REQUIRE(write_piece(writer, file, 0, 'a', false).has_value());
  CHECK(file.text.size() == kStagingBytes);
  CHECK_FALSE(file.by_another_thread);
}

TEST_CASE(
    "background writer: finish, or a write before it, returns the error of a failed write once, and nothing follows") {
  for (const bool by_finish : {true, false}) {
    KeptFile file;
    file.failing_write = 1;
    BackgroundWriter writer;
    file.is_held = true;
    REQUIRE(write_piece(writer, file, 0, 'a', true).has_value());
    REQUIRE(write_piece(writer, file, kStagingBytes, 'b', true).has_value());
    file.is_held = false;
    Result<void> told = by_finish ? writer.finish() : Result<void>();
    // Without finish(): as soon as a buffer must become free, at the latest.
    for (uint64_t piece = 2; told.has_value() && piece < 8; ++piece)
      told = write_piece(writer, file, piece * kStagingBytes, 'c', true);
    REQUIRE_FALSE(told.has_value());
    CHECK(told.error().kind == ErrorKind::io);
    CHECK(file.writes == 1);
    CHECK(writer.finish().has_value());
    CHECK(write_piece(writer, file, 0, 'd', false).has_value());
  }
}

TEST_CASE("background writer: no buffer is filled again before it is written") {
  KeptFile file;
  BackgroundWriter writer;
  std::string wanted;
  for (uint64_t piece = 0; piece < 40; ++piece) {
    const char byte = static_cast<char>('A' + piece);
    REQUIRE(write_piece(writer, file, piece * kStagingBytes, byte, true).has_value());
    wanted += std::string(kStagingBytes, byte);
  }
  REQUIRE(writer.finish().has_value());
  CHECK((file.text == wanted));
}

TEST_CASE("background writer: abandon waits, so that the file may go") {
  BackgroundWriter writer;
  {
    KeptFile file;
    REQUIRE(write_piece(writer, file, 0, 'a', true).has_value());
    writer.abandon();
    CHECK(file.writes == 1);
  }
}

}  // namespace dspack::reshard::background_writer_test
